//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/copytree"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/egress"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/fileserver"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/pid1"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/sftpserver"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/sshserver"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func main() {
	verb, args := "", []string(nil)
	if len(os.Args) > 1 {
		verb, args = os.Args[1], os.Args[2:]
	}
	if code, err := run(verb, args); err != nil {
		fmt.Fprintf(os.Stderr, "guest: %v\n", err)
		os.Exit(code)
	}
}

// run carries out a verb. The exit code is for its error.
func run(verb string, args []string) (code int, err error) {
	switch verb {
	case wire.VerbInit:
		return wire.CodeFailed, pid1.Run(args)
	case wire.VerbServe:
		return 1, sshserver.Serve(args)
	case wire.VerbKeep:
		return 1, sshserver.Keep(args)
	case wire.VerbRun:
		return proc.Run(args)
	case wire.VerbFiles:
		return 1, fileserver.Run()
	case wire.VerbSFTP:
		return 1, sftpserver.Run()
	case proc.VerbTrust:
		return 1, proc.RunTrust()
	case wire.VerbCopy:
		return 1, copytree.Run(args)
	case wire.VerbLayer:
		return 1, copytree.Layer()
	case wire.VerbLook:
		return 1, copytree.Look(args)
	case wire.VerbDu:
		// The engine starts it in a sandbox, with the container's privileges.
		if err := proc.DropPrivileges(); err != nil {
			return 1, err
		}
		return 1, copytree.Sizes(args)
	case wire.VerbEmpty:
		return 1, copytree.Empty(args)
	case wire.VerbPack:
		return 1, copytree.Pack(args)
	case wire.VerbUnpack:
		return 1, copytree.Unpack(args)
	case wire.VerbProbe:
		return 1, egress.Probe()
	case wire.VerbTry:
		return 1, try(args)
	}
	return 2, fmt.Errorf("unknown verb %q", verb)
}

// try prints whether the kernel can enforce a policy, which it does for this container
// alone, whether files in a directory can share blocks, and whether changed files are kept.
func try(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes a directory", wire.VerbTry)
	}
	var a wire.Abilities
	if err := egress.Try(); err != nil {
		a.Policy = err.Error()
	}
	if err := copytree.TryReflink(args[0]); err != nil {
		a.Reflink = err.Error()
	}
	var err error
	if a.Volatile, err = copytree.VolatileRoot(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}
