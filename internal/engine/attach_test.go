package engine_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// An attach has no body. The engine reads none, so what comes of one when the connection
// is a stream already would be the first bytes of the container's input.
func TestAttachSendsNothingBeforeTheInput(t *testing.T) {
	t.Parallel()
	body := make(chan string, 1)
	host := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		body <- string(b)
		w.WriteHeader(http.StatusNotFound)
	})
	e, err := engine.Open(t.Context(), engine.Options{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.Attach(t.Context(), "some", true); err == nil {
		t.Error("Attach: no error of a container that is not there")
	}
	if got := <-body; got != "" {
		t.Errorf("Attach sent %q before the container's input", got)
	}
}
