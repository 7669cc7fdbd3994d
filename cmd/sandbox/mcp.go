package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/cmd/sandbox/internal/mcpserver"
)

func (a *app) mcpCommand() *cobra.Command {
	var (
		o                 mcpserver.Options
		networks          []string
		lifetime, command = duration(time.Hour), duration(5 * time.Minute)
		memory, output    = size(2 << 30), size(64 << 10)
	)
	c := &cobra.Command{
		Use:   "mcp",
		Short: "Serve sandboxes to an agent by the Model Context Protocol, on stdin and stdout",
		Long: `Serve sandboxes to an agent by the Model Context Protocol, on stdin and stdout. The flags limit
what the agent may ask for. It reaches only the sandboxes that it made. When it disconnects, or
this program is killed, they are deleted, unless --keep is given.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Lifetime, o.CommandTime = time.Duration(lifetime), time.Duration(command)
			o.Memory, o.Output = int64(memory), int(output)
			if err := checkMCP(&o, networks); err != nil {
				return usageError{err}
			}
			// An agent that is gone is an error of a write, not the end of this program, which has to clean up.
			broken := make(chan os.Signal, 1)
			signal.Notify(broken, syscall.SIGPIPE)
			defer signal.Stop(broken)
			left, err := mcpserver.New(a.client, o).Run(c.Context(), a.stdin, unclosed{a.stdout})
			for _, name := range left {
				fmt.Fprintln(a.stderr, "left:", name)
			}
			return err
		},
	}
	c.Flags().StringArrayVar(&o.Images, "image", []string{sandbox.DefaultImage}, "an image that may be used; the first is the default")
	c.Flags().StringArrayVar(&networks, "network", []string{"deny-all"}, "a network policy that may be used, as for \"sandbox create\"; the first is the default")
	c.Flags().StringArrayVar(&o.Mounts, "mount", nil, "a mount that may be used")
	c.Flags().BoolVar(&o.Remote, "remote-mounts", false, "sources of mounts in mode ro and rw are directories of the engine's machine, not of this one")
	c.Flags().Float64Var(&o.VCPUs, "vcpus", sandbox.DefaultVCPUs, "the number of CPUs of a sandbox, at most")
	c.Flags().Var(&memory, "memory", "the memory limit of a sandbox, at most")
	c.Flags().IntVar(&o.Sandboxes, "count", 4, "the number of sandboxes at one time, at most")
	c.Flags().IntVar(&o.Pool, "pool", 0, "keep this many sandboxes with the defaults running, beside those at one time, for the next that are made")
	c.Flags().IntVar(&o.Snapshots, "snapshots", 16, "the number of snapshots at one time, at most")
	c.Flags().Var(&lifetime, "lifetime", "end each sandbox after this time")
	c.Flags().Var(&command, "command-timeout", "kill each command after this time, unless it runs in the background")
	c.Flags().Var(&output, "output", "the size of the text in one result, at most")
	c.Flags().BoolVar(&o.Keep, "keep", false, "keep the sandboxes and snapshots; print their names on stderr in the end")
	return c
}

// checkMCP completes the limits, or returns all that is wrong with them.
func checkMCP(o *mcpserver.Options, networks []string) error {
	var errs []error
	for _, text := range networks {
		policy, err := sandbox.ParseNetworkPolicy(text)
		o.Networks, errs = append(o.Networks, policy), append(errs, err)
	}
	if slices.Contains(o.Images, "") {
		errs = append(errs, errors.New("--image: the value is empty"))
	}
	for _, spec := range o.Mounts {
		_, err := sandbox.ParseMount(spec)
		errs = append(errs, err)
	}
	for _, limit := range []struct {
		flag string
		ok   bool
	}{
		{"image", len(o.Images) > 0}, {"network", len(networks) > 0}, {"vcpus", o.VCPUs > 0}, {"memory", o.Memory > 0}, {"count", o.Sandboxes > 0},
		{"pool", o.Pool >= 0}, {"snapshots", o.Snapshots >= 0}, {"lifetime", o.Lifetime > 0}, {"command-timeout", o.CommandTime > 0}, {"output", o.Output >= 1<<10},
	} {
		if !limit.ok {
			errs = append(errs, fmt.Errorf("--%s: the value is too small", limit.flag))
		}
	}
	return errors.Join(errs...)
}

// unclosed is a writer that is not ours to close.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }
