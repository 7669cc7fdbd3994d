package sandbox

import (
	"context"
	"io/fs"
)

// still reads the files of a sandbox without a session, through the engine.
type still struct {
	s  *Sandbox
	id string
}

func (s *Sandbox) still(ctx context.Context) (*still, error) { return &still{}, nil }

type stillFile struct{ info *fileInfo }

func (st *still) readFile(ctx context.Context, path string) ([]byte, error) {
	return nil, ErrNotRunning
}
func (st *still) readlink(ctx context.Context, path string) (string, error) { return "", ErrNotRunning }
func (st *still) stat(ctx context.Context, path string, f bool) (*fileInfo, error) {
	return nil, ErrNotRunning
}
func (st *still) readDir(ctx context.Context, path string) ([]fs.DirEntry, error) {
	return nil, ErrNotRunning
}
func (st *still) open(ctx context.Context, path string) (*stillFile, error) {
	return nil, ErrNotRunning
}
func (f *stillFile) readAt(b []byte, off int64) (int, error) { return 0, ErrNotRunning }
func (f *stillFile) entries() ([]fs.DirEntry, error)         { return nil, ErrNotRunning }
func (f *stillFile) close() error                            { return nil }
