//go:build linux

package fileserver

import (
	"errors"
	"io"
	"os"

	"github.com/pkg/sftp"
)

// SFTP serves SFTP on standard input and output, as whoever runs it. Relative paths
// begin where it was started.
func SFTP() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	s, err := sftp.NewServer(sftpStdio{os.Stdin, os.Stdout}, sftp.WithServerWorkingDirectory(dir))
	if err != nil {
		return err
	}
	if err := s.Serve(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

type sftpStdio struct {
	io.ReadCloser
	io.WriteCloser
}

func (s sftpStdio) Close() error { return errors.Join(s.WriteCloser.Close(), s.ReadCloser.Close()) }
