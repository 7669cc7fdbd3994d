//go:build linux

package pid1

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// trustTime bounds the child that writes the files, and the wait for a hold before.
const trustTime = 10 * time.Second

// trust makes the sandbox trust a certificate, or none. A child with no more than root's
// privileges inside writes the files: they are root's, and may be anything.
func (s *session) trust(cert string) error {
	if cert == "" {
		_, authority := os.Lstat(proc.TrustAuthority)
		_, bundle := os.Lstat(proc.TrustBundle)
		if errors.Is(authority, fs.ErrNotExist) && errors.Is(bundle, fs.ErrNotExist) {
			return nil
		}
	}
	leave, err := s.gates.enter(trustTime) // it writes files
	if err != nil {
		return fmt.Errorf("trust: the processes are held: %w", err)
	}
	defer leave()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		r.Close()
		return err
	}
	defer null.Close()
	c, err := s.reaper.Start(func() (int, error) {
		return syscall.ForkExec(wire.Self, []string{wire.Program, proc.VerbTrust}, &syscall.ProcAttr{
			Dir: "/", Env: []string{}, Files: []uintptr{r.Fd(), null.Fd(), null.Fd()},
			Sys: &syscall.SysProcAttr{Setsid: true},
		})
	})
	r.Close()
	if err != nil {
		return err
	}
	io.WriteString(w, cert)
	w.Close()
	select {
	case <-c.Done:
	case <-time.After(trustTime):
		s.reaper.Signal(c, unix.SIGKILL)
		return errors.New("trust: timed out")
	}
	if exit := c.Exit(); exit.Code != 0 {
		return fmt.Errorf("trust: exit code %d", exit.Code)
	}
	return nil
}
