//go:build !unix

package git

import "os/exec"

func setSession(*exec.Cmd) {}
