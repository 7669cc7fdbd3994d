//go:build linux

package main

import (
	"fmt"
	"os"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func main() {
	verb, args := "", []string(nil)
	if len(os.Args) > 1 {
		verb, args = os.Args[1], os.Args[2:]
	}
	var err error
	code := 1
	switch verb {
	case wire.VerbInit:
		code = wire.CodeFailed
		err = runInit(args)
	case wire.VerbServe:
		err = runServe(args)
	case wire.VerbKeep:
		err = runKeep(args)
	case wire.VerbRun:
		code, err = runRun(args)
	case wire.VerbFiles:
		err = runFiles()
	case verbTrust:
		err = runTrust()
	case wire.VerbSFTP:
		err = runSFTP()
	case wire.VerbCopy:
		err = runCopy(args)
	case wire.VerbDu:
		err = runDu(args)
	case wire.VerbProbe:
		err = runProbe()
	case wire.VerbTry:
		err = runTry(args)
	case wire.VerbPack:
		err = runPack(args)
	case wire.VerbUnpack:
		err = runUnpack(args)
	default:
		code, err = 2, fmt.Errorf("unknown verb %q", verb)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "guest: %v\n", err)
		os.Exit(code)
	}
}
