package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// An account is what one step of a race did.
type Account struct {
	Done     map[string]int
	Reported []string // volumes that a report or list told of
	Strange  []string // errors that are none of our sentinels
}

// Racing is a role that takes steps until the time is over that its last argument says, and
// prints an account of each.
func Racing(step func(a *Account, ctx context.Context, c *sandbox.Client, args []string)) func([]string) error {
	return func(args []string) error {
		length, err := time.ParseDuration(args[len(args)-1])
		if err != nil {
			return err
		}
		c, err := Open()
		if err != nil {
			return err
		}
		defer c.Close()
		out := json.NewEncoder(os.Stdout)
		for began := time.Now(); time.Since(began) < length; {
			a := Account{Done: map[string]int{}}
			step(&a, context.Background(), c, args)
			if err := out.Encode(a); err != nil {
				return err
			}
		}
		return nil
	}
}

// Racers are processes in a role of [Racing].
type Racers struct {
	Processes int
	Mortal    int // so many of them are killed again and again, each within MaxLife
	MaxLife   time.Duration
	Length    time.Duration // of the race
	Host      string        // of their engine, if it is not the usual one
}

// Race runs the processes and adds their accounts up. An error that is none of ours fails the
// test.
func Race(t *testing.T, racers Racers, role string, args ...string) (done map[string]int, reported map[string]bool) {
	t.Helper()
	done, reported = map[string]int{}, map[string]bool{}
	var all sync.WaitGroup
	var mu sync.Mutex
	end, deaths := time.Now().Add(racers.Length), 0
	for i := range racers.Processes {
		all.Go(func() {
			for left := racers.Length; left > 0; left = time.Until(end) {
				life := time.Duration(0)
				if i < racers.Mortal {
					life = rand.N(racers.MaxLife)
				}
				cmd := Process(t, role, append(slices.Clone(args), left.String())...)
				if racers.Host != "" {
					cmd.Env = append(cmd.Env, "DOCKER_HOST="+racers.Host)
				}
				killed, err := race(cmd, life, func(a Account) {
					mu.Lock()
					defer mu.Unlock()
					for what, n := range a.Done {
						done[what] += n
					}
					for _, name := range a.Reported {
						reported[name] = true
					}
					for _, s := range a.Strange {
						t.Errorf("an error that is none of ours: %s", s)
					}
				})
				if err != nil {
					t.Errorf("a process of the race: %v", err)
					return
				}
				if killed {
					mu.Lock()
					deaths++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	t.Logf("%v, %d processes killed", done, deaths)
	return done, reported
}

// race runs a process of a race, and kills it at the end of its life if that is not 0.
func race(cmd *exec.Cmd, life time.Duration, add func(Account)) (killed bool, err error) {
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return false, err
	}
	if life > 0 {
		death := time.AfterFunc(life, func() { cmd.Process.Kill() })
		defer func() {
			if killed = !death.Stop(); killed {
				err = nil
			}
		}()
	}
	for accounts := json.NewDecoder(out); err == nil; {
		var a Account
		if err = accounts.Decode(&a); err == nil {
			add(a)
		}
	}
	if err == io.EOF {
		err = nil
	}
	return false, errors.Join(cmd.Wait(), err)
}

// Note counts a step, or notes its error if that is none of ours.
func (a *Account) Note(what string, err error) {
	for _, known := range []error{sandbox.ErrNotFound, sandbox.ErrExists, sandbox.ErrVolumeInUse, sandbox.ErrVolumeNotFound, sandbox.ErrNotRunning,
		sandbox.ErrSnapshotNotFound, sandbox.ErrSnapshotInUse} {
		if errors.Is(err, known) {
			a.Done[what+": "+known.Error()]++
			return
		}
	}
	a.Must(what, err)
}

// Must counts a step, or notes its error, whichever it is.
func (a *Account) Must(what string, err error) {
	if err == nil {
		a.Done[what]++
		return
	}
	a.Strange = append(a.Strange, fmt.Sprintf("%s: %v", what, err))
}
