// Rl-rollouts lets a policy try a task many times, each time in a fresh sandbox from a pool. A
// rollout that fails because of the machine, such as a session that somebody ends, is no sample of
// the policy: it is repeated. Whatever the code inside does counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
)

const (
	atOnce   = 2
	maxTries = 3
	steps    = 3
)

// task is what a sandbox of the pool begins with: a number to be guessed. A guess is answered by a
// program of the sandbox.
const task = `cat >/usr/local/bin/guess <<'END'
#!/bin/sh
secret=$(cat /opt/secret)
[ "$1" -eq "$secret" ] && echo right && exit 0
[ "$1" -lt "$secret" ] && echo more || echo less
exit 1
END
chmod +x /usr/local/bin/guess; echo 4 >/opt/secret`

func main() {
	log.SetFlags(0)
	n := flag.Int("n", 64, "how many rollouts")
	broken := flag.Int("break", 2, "how many sessions to end, as a machine does that fails")
	flag.Parse()
	if err := run(context.Background(), *n, *broken); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, n, broken int) (err error) {
	pool, err := sandbox.NewPool(ctx, atOnce,
		sandbox.WithNetworkPolicy(sandbox.DenyAll()),
		sandbox.WithTimeout(5*time.Minute),
		sandbox.OnCreate(func(ctx context.Context, sb *sandbox.Sandbox) error {
			return sb.Command(ctx, "sh", "-ec", task).Run()
		}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()

	var repeated atomic.Int64
	rewards := make([]float64, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range rewards {
		g.Go(func() error {
			for try := 1; ; try++ {
				reward, err := rollout(ctx, pool, uint64(i), i < broken && try == 1)
				switch {
				case err == nil:
					rewards[i] = reward
					return nil
				case infrastructure(err) && try < maxTries:
					repeated.Add(1)
				default:
					return fmt.Errorf("rollout %d, try %d: %w", i, try, err)
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	var sum float64
	for _, r := range rewards {
		sum += r
	}
	fmt.Printf("%d rollouts, %d repeated, mean reward %.2f\n", n, repeated.Load(), sum/float64(n))
	return nil
}

// infrastructure reports whether an error says nothing about the policy: the session ended, or the
// engine could not be reached.
func infrastructure(err error) bool {
	return errors.Is(err, sandbox.ErrSessionLost) || errors.Is(err, sandbox.ErrEngineUnavailable) || errors.Is(err, sandbox.ErrNotRunning)
}

// rollout is one try of the policy, and its reward. fails ends the session in between.
func rollout(ctx context.Context, pool *sandbox.Pool, seed uint64, fails bool) (reward float64, err error) {
	sb, err := pool.Create(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, sb.Close()) }()
	policy := rand.New(rand.NewPCG(seed, 0)) // put a model in its place
	low, high := 1, 10
	for step := range steps {
		if fails {
			if err := endSession(ctx, sb); err != nil {
				return 0, err
			}
		}
		guess := low + policy.IntN(high-low)
		cmd := sb.Command(ctx, "guess", fmt.Sprint(guess))
		cmd.Timeout = 10 * time.Second
		out, err := cmd.Output()
		if _, failed := errors.AsType[*sandbox.ExitError](err); err != nil && !failed && !errors.Is(err, sandbox.ErrTimeout) {
			return 0, err
		}
		switch string(out) {
		case "right\n":
			return 1 - float64(step)/steps, nil
		case "more\n":
			low = guess + 1
		default:
			high = guess
		}
	}
	return 0, nil
}

// endSession ends a session while a command runs in it, and returns the command's error.
func endSession(ctx context.Context, sb *sandbox.Sandbox) error {
	cmd := sb.Command(ctx, "sleep", "60")
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := sb.Stop(ctx); err != nil {
		return errors.Join(err, cmd.Wait())
	}
	return cmd.Wait()
}
