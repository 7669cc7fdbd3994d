package files

import (
	"os"
	"syscall"
	"testing"
)

// Flags of package syscall that make no difference are no error, and O_DSYNC is O_SYNC.
func TestFlagsOfPackageSyscall(t *testing.T) {
	t.Parallel()
	for flag, same := range map[int]int{
		os.O_RDWR | syscall.O_CLOEXEC | syscall.O_NONBLOCK | syscall.O_NOCTTY: os.O_RDWR,
		os.O_WRONLY | os.O_CREATE | syscall.O_DSYNC:                           os.O_WRONLY | os.O_CREATE | os.O_SYNC,
	} {
		got, err := openFlags(flag)
		want, wantErr := openFlags(same)
		if got != want || err != nil || wantErr != nil {
			t.Errorf("flags %#x are %#x, %v, and %#x are %#x, %v, want the same", flag, got, err, same, want, wantErr)
		}
	}
	for _, flag := range []int{os.O_WRONLY | os.O_RDWR, syscall.O_NOFOLLOW, syscall.O_DIRECTORY, 1 << 30} {
		if got, err := openFlags(flag); err == nil {
			t.Errorf("flags %#x are %#x, want an error", flag, got)
		}
	}
}
