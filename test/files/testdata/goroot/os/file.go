package os

import (
	"io"

	"github.com/seed-1a2d6d8f/sandbox"
)

// File is a sandbox.File with errors as package os has them.
type File struct {
	f    *sandbox.File
	name string
}

func (f *File) Name() string { return f.name }

func (f *File) Read(b []byte) (int, error) {
	n, err := f.f.Read(b)
	return n, plain(err)
}

func (f *File) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.f.ReadAt(b, off)
	return n, plain(err)
}

func (f *File) WriteTo(w io.Writer) (int64, error) {
	n, err := f.f.WriteTo(w)
	return n, plain(err)
}

func (f *File) Write(b []byte) (int, error) {
	n, err := f.f.Write(b)
	return n, plain(err)
}

func (f *File) WriteString(s string) (int, error) {
	n, err := f.f.WriteString(s)
	return n, plain(err)
}

func (f *File) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.f.WriteAt(b, off)
	return n, plain(err)
}

func (f *File) ReadFrom(r io.Reader) (int64, error) {
	n, err := f.f.ReadFrom(r)
	return n, plain(err)
}

func (f *File) Seek(offset int64, whence int) (int64, error) {
	n, err := f.f.Seek(offset, whence)
	return n, plain(err)
}

func (f *File) Stat() (FileInfo, error)           { return described(f.f.Stat()) }
func (f *File) ReadDir(n int) ([]DirEntry, error) { return entries(f.f.ReadDir(n)) }
func (f *File) Truncate(size int64) error         { return plain(f.f.Truncate(size)) }
func (f *File) Sync() error                       { return plain(f.f.Sync()) }
func (f *File) Close() error                      { return plain(f.f.Close()) }

// Chmod and Chown are by the file's name: a sandbox's File has neither.
func (f *File) Chmod(mode FileMode) error { return Chmod(f.name, mode) }
func (f *File) Chown(uid, gid int) error  { return Chown(f.name, uid, gid) }

// Readdirnames are the names that ReadDir returns.
func (f *File) Readdirnames(n int) ([]string, error) {
	list, err := f.ReadDir(n)
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names, err
}

// Readdir describes the files that ReadDir returns.
func (f *File) Readdir(n int) ([]FileInfo, error) {
	list, err := f.ReadDir(n)
	infos := make([]FileInfo, len(list))
	for i, e := range list {
		var infoErr error
		if infos[i], infoErr = e.Info(); infoErr != nil {
			return nil, infoErr
		}
	}
	return infos, err
}
