//go:build linux

package pid1

import (
	"encoding/json"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// startMain starts the main process, by the verb run, once a network policy is in force.
func (s *session) startMain() {
	defer close(s.mainKnown)
	if s.conf.Main == nil {
		return
	}
	<-s.egress.InForce()
	s.main, s.mainError = s.runMain()
}

func (s *session) runMain() (*proc.Child, *wire.StartError) {
	environ := s.conf.Main.Env
	if environ == nil {
		environ = s.environ
		if !s.conf.Home {
			environ = slices.DeleteFunc(environ, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") })
		}
	}
	// The environment is passed as one: any process can read an argument list.
	spec := *s.conf.Main
	spec.Env = nil
	request, err := json.Marshal(spec)
	if err != nil {
		return nil, proc.StartErrorf(wire.KindArguments, "%v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, proc.StartErrorf(wire.KindResources, "%v", err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		w.Close()
		return nil, proc.StartErrorf(wire.KindResources, "%v", err)
	}
	defer null.Close()
	s.gates.starts.RLock()
	c, err := s.reaper.Start(func() (int, error) {
		return syscall.ForkExec(wire.Self, []string{wire.Program, wire.VerbRun, string(request), strconv.Itoa(startFD)}, &syscall.ProcAttr{
			Dir: "/", Env: environ,
			Files: []uintptr{null.Fd(), 1, 2, w.Fd()},
			Sys:   &syscall.SysProcAttr{Setsid: true},
		})
	})
	s.gates.starts.RUnlock()
	w.Close()
	if err != nil {
		return nil, proc.StartErrorf(wire.KindResources, "%v", err)
	}
	report, err := io.ReadAll(io.LimitReader(r, wire.MaxControlLine))
	if err != nil || len(report) == 0 {
		return c, nil
	}
	refused := new(wire.StartError)
	if err := json.Unmarshal(report, refused); err != nil {
		refused = proc.StartErrorf(wire.KindOther, "the main process did not start")
	}
	return nil, refused
}

// mainStatus returns the state of the main process. It waits until the start is known.
func (s *session) mainStatus() *wire.MainStatus {
	<-s.mainKnown
	if s.conf.Main == nil {
		return nil
	}
	if s.mainError != nil {
		return &wire.MainStatus{Start: s.mainError}
	}
	status := &wire.MainStatus{Pid: s.main.PID}
	select {
	case <-s.main.Done:
		exit := s.main.Exit()
		status.Exit = &exit
	default:
	}
	return status
}
