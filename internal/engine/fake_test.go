package engine_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeEngine speaks just enough of the API to be opened, and h for the rest.
// It is for answers that a real engine cannot be brought to give.
func fakeEngine(t testing.TB, h http.HandlerFunc) (host string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fe")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Ostype", "linux")
		if strings.HasSuffix(r.URL.Path, "/_ping") {
			return
		}
		h(w, r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() {
		_ = srv.Shutdown(context.Background())
		<-done
		_ = os.RemoveAll(dir)
	})
	return "unix://" + ln.Addr().String()
}
