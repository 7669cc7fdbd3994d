package sandbox

import (
	"context"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// ProcessInfo describes a detached command in [Sandbox.Processes].
type ProcessInfo struct {
	// ID is [Cmd.ID], which [Sandbox.Process] takes.
	ID string `json:"id"`
	// Path is the program. Args are the first 16 arguments, with the program's name; they are
	// known of commands of the running session alone, since they may be secret. Texts are cut
	// to 256 bytes.
	Path string   `json:"path"`
	Args []string `json:"args,omitempty"`
	Dir  string   `json:"workdir,omitempty"`
	User string   `json:"user,omitempty"`
	// StartedAt and EndedAt are by the clock of the engine's machine. EndedAt is zero while
	// the command runs, and if it is not known when it ended.
	StartedAt time.Time `json:"startedAt"`
	EndedAt   time.Time `json:"endedAt,omitzero"`
	Running   bool      `json:"running"`
	// ExitCode is the exit code, or 128 + n if signal n ended the command. Nil while it runs,
	// and if it is not known how it ended, as after a session that was killed.
	ExitCode *int `json:"exitCode,omitempty"`
	// Signal is the number, on Linux, of the signal that ended the command; 0 if it exited.
	Signal int `json:"signal,omitempty"`
	// TimedOut means that [Cmd.Timeout] ended the command.
	TimedOut bool `json:"timedOut,omitempty"`
}

// Processes lists the latest 256 detached commands ([Cmd.Detached]) of the running session and of
// earlier ones, in the order in which they started. It does not wait for them, and does not resume
// a stopped sandbox. The sandbox's files have the record of earlier sessions, without arguments;
// root inside can change it, so do not trust it. A new container, after [Sandbox.Update], may not
// have it, and a fork does not list its source's commands.
func (s *Sandbox) Processes(ctx context.Context) (_ []ProcessInfo, err error) {
	ctx, span := trace.Start(ctx, "sandbox.processes", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "processes", s.Name())
	got, err := s.h.Processes(ctx)
	list := []ProcessInfo{}
	for _, p := range got {
		info := ProcessInfo{ID: p.ID, Path: p.Path, Args: p.Args, Dir: p.Dir, User: p.User, StartedAt: p.Started, EndedAt: p.Ended, Running: p.Live}
		if p.Exit != nil {
			info.ExitCode, info.Signal, info.TimedOut = new(p.Exit.Code), p.Exit.Signal, p.Exit.TimedOut
		}
		list = append(list, info)
	}
	return list, err
}
