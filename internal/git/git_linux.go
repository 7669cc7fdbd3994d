package git

import (
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// credentialCommand is the shell command that prints what passCredentials prepared. Opening
// /dev/fd/3 starts at the beginning each time.
func credentialCommand(string) string { return "cat /dev/fd/3" }

// passCredentials passes git the credentials in an anonymous memory file: they are in no
// named file, no argument and no environment.
func (r *runner) passCredentials(cmd *exec.Cmd) (done func(), err error) {
	fd, err := unix.MemfdCreate("git", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "git")
	if _, err = f.Write(r.credentials()); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{f} // descriptor 3
	return func() { f.Close() }, nil
}
