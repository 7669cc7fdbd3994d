package guest

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// printed is a stream that holds a text and ends.
type printed struct{ io.Reader }

func (printed) Write(b []byte) (int, error) { return len(b), nil }
func (printed) Close() error                { return nil }

// What came in place of the guest's greeting is in the error, bounded and safe to print.
func TestDialReportsWhatAnswersInPlaceOfTheGuest(t *testing.T) {
	t.Parallel()
	const message = "OCI runtime exec failed: exec failed: unable to start container process: read init-p: connection reset by peer"
	for name, test := range map[string]struct{ output, want string }{
		"a line":              {message + "\r\n", message},
		"without a line":      {message, message},
		"longer than a line":  {message + strings.Repeat(" again", 40) + ": unknown\r\n", "again: unknown"},
		"not printable":       {"\x1b[2Jno\n\xff", `\x1b[2Jno\n\xff`},
		"longer than is kept": {strings.Repeat("y", 1<<20), strings.Repeat("y", 500)},
	} {
		_, err := Dial(t.Context(), printed{strings.NewReader(test.output)})
		var other *NotGuestError
		if !errors.As(err, &other) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: Dial: %v, want a NotGuestError with %q", name, err, test.want)
		}
		if text := err.Error(); errdefs.Printable(text) != text || len(text) > 4<<10 {
			t.Errorf("%s: the error has %d bytes: %q", name, len(text), text)
		}
	}
	for name, output := range map[string]string{"nothing": "", "half a greeting": wire.GreetingPrefix, "another greeting": wire.GreetingPrefix + "2\n"} {
		_, err := Dial(t.Context(), printed{strings.NewReader(output)})
		if other := new(NotGuestError); err == nil || errors.As(err, &other) {
			t.Errorf("%s: Dial: %v, want an error that is no NotGuestError", name, err)
		}
	}
}
