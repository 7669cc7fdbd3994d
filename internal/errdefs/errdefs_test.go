package errdefs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"
)

func TestStatusCodes(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]int{
		NotFound: 404, Exists: 409, TooLarge: 413, Unsupported: 501, EngineUnavailable: 503,
		context.Canceled: 499, context.DeadlineExceeded: 504,
		syscall.ENOENT: 404, syscall.EACCES: 403, syscall.EPERM: 403, syscall.EEXIST: 409, syscall.ENOTEMPTY: 409,
		syscall.EISDIR: 400, syscall.ENOTDIR: 400, syscall.ELOOP: 400, syscall.ENAMETOOLONG: 400, syscall.EINVAL: 400, syscall.EXDEV: 400, syscall.ENOEXEC: 400, os.ErrProcessDone: 409,
		syscall.EROFS: 403, syscall.EBUSY: 409, syscall.ETXTBSY: 409, syscall.EFBIG: 413, syscall.ENOSPC: 507, syscall.EDQUOT: 507,
		syscall.EIO: 500, errors.New("another"): 500,
		Classify(TooLarge, syscall.EISDIR): 413, // the class comes first
	} {
		for _, err := range []error{err, fmt.Errorf("copy: %w", &fs.PathError{Op: "open", Path: "a", Err: err})} {
			if got := StatusCode(err); got != want {
				t.Errorf("%v: %d, want %d", err, got, want)
			}
		}
	}
}
