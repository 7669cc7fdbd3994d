package harness

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// RandomTree makes a tree below dir with files of every kind that tar keeps, of random modes and times.
func RandomTree(t *testing.T, rnd *rand.Rand, dir string) {
	t.Helper()
	names := []string{"a", "b b", "ü", "new\nline", "-dash", ".hidden", "\xff\xfe", strings.Repeat("long", 30), strings.Repeat("n", 255), "tab\t", `back\slash`, "*"}
	years := []int{1901, 1955, 1970, 1999, 2001, 2024, 2037, 2040, 2105, 2107, 2200, 2262, 2300, 2500}
	pick := func(n int) int { return rnd.IntN(n) }
	check := func(err error) {
		t.Helper()
		if err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	dirs, files := []string{dir}, []string{}
	for i := range 24 {
		at := dirs[pick(len(dirs))]
		file := filepath.Join(at, names[pick(len(names))]+[]string{"", fmt.Sprint(i)}[pick(2)])
		if len(filepath.Base(file)) > 255 {
			continue
		}
		if _, err := os.Lstat(file); err == nil {
			continue
		}
		switch pick(10) {
		case 0, 1:
			check(os.Mkdir(file, 0o755))
			dirs = append(dirs, file)
		case 2:
			check(os.Symlink([]string{"a", "../b", "/etc/passwd", "nowhere", strings.Repeat("x/", 80) + "y"}[pick(5)], file))
			files = append(files, file)
		case 3:
			if len(files) > 0 {
				check(os.Link(files[pick(len(files))], file))
			}
		case 4:
			check(unix.Mkfifo(file, 0o644))
		case 5:
			check(os.WriteFile(file, []byte("sparse"), 0o644))
			check(os.Truncate(file, int64(pick(1<<20))))
			files = append(files, file)
		default:
			b := make([]byte, []int{0, 1, 511, 512, 513, 10240, 70000}[pick(7)])
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			check(os.WriteFile(file, b, 0o644))
			if pick(3) == 0 {
				check(unix.Setxattr(file, "user.test", []byte("value\x00="), 0))
			}
			files = append(files, file)
		}
	}
	all := append(dirs[1:], files...)
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(b, a) })
	for _, file := range all {
		info, err := os.Lstat(file)
		check(err)
		if info.Mode()&os.ModeSymlink == 0 {
			check(unix.Chmod(file, uint32(pick(0o10000))))
		}
		when := unix.Timespec{Sec: time.Date(years[pick(len(years))], 1, 1, pick(24), pick(60), pick(60), 0, time.UTC).Unix(), Nsec: []int64{0, 1, 500000000, 999999999}[pick(4)]}
		check(unix.UtimesNanoAt(unix.AT_FDCWD, file, []unix.Timespec{when, when}, unix.AT_SYMLINK_NOFOLLOW))
	}
}
