//go:build linux

package proc

import "golang.org/x/sys/unix"

// Drained returns a channel that is closed when all of the command's output has been copied, by Run.
func (c *Command) Drained() <-chan struct{} { return c.drained }

// Break sends a break to the command's terminal. It returns false when there is none.
func (c *Command) Break() bool {
	if !c.req.TTY {
		return false
	}
	raw, err := c.stdout.SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) { err = unix.IoctlSetInt(int(fd), unix.TCSBRK, 0) })
	return err == nil
}
