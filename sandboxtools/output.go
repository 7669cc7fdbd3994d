package sandboxtools

import (
	"bytes"
	"strings"
	"sync"
)

// output keeps the first and the last half of max bytes of what is written to it.
type output struct {
	max    int
	report func(text []byte) // gets all of it; may be nil

	mu    sync.Mutex
	first []byte
	last  []byte // a ring
	at    int    // where its next byte goes once it is full
	total int64
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.report != nil {
		o.report(p)
	}
	n := len(p)
	o.total += int64(n)
	half := o.max / 2
	if free := half - len(o.first); free > 0 {
		taken := min(free, len(p))
		o.first, p = append(o.first, p[:taken]...), p[taken:]
	}
	if size := o.max - half; len(p) > size {
		p = p[len(p)-size:]
	}
	if free := o.max - half - len(o.last); free > 0 {
		taken := min(free, len(p))
		o.last, p = append(o.last, p[:taken]...), p[taken:]
	}
	for len(p) > 0 {
		taken := copy(o.last[o.at:], p)
		o.at, p = (o.at+taken)%len(o.last), p[taken:]
	}
	return n, nil
}

// text returns what was kept, and the number of bytes that are missing in its middle.
func (o *output) text() (string, int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := bytes.Join([][]byte{o.first, o.last[o.at:], o.last[:o.at]}, nil)
	omitted := o.total - int64(len(kept))
	if omitted == 0 {
		return valid(kept), 0
	}
	return valid(o.first) + "\n[...]\n" + valid(kept[len(o.first):]), omitted
}

// valid returns text in UTF-8, as JSON has to be.
func valid(p []byte) string { return strings.ToValidUTF8(string(p), "\uFFFD") }
