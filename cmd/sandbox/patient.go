package main

import (
	"errors"
	"io"
	"syscall"
	"time"
)

// patient makes a stream of ours block although another program, which shares it with us, has made it
// non-blocking: a terminal, or the pipe between two commands of a script. What was non-blocking when
// this program began, package os handles by itself.
type patient struct{ stream any }

// againEvery is how long a stream is waited for that was not ready.
const againEvery = 5 * time.Millisecond

func (p patient) Read(b []byte) (n int, err error) {
	for {
		n, err = p.stream.(io.Reader).Read(b)
		if n > 0 || !errors.Is(err, syscall.EAGAIN) {
			return n, err
		}
		time.Sleep(againEvery)
	}
}

func (p patient) Write(b []byte) (n int, err error) {
	for {
		m, err := p.stream.(io.Writer).Write(b[n:])
		if n += m; !errors.Is(err, syscall.EAGAIN) {
			return n, err
		}
		time.Sleep(againEvery)
	}
}
