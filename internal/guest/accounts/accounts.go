// Package accounts resolves users against the account files of a container, /etc/passwd and
// /etc/group, for the guest inside it and its client outside.
package accounts

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// User is the user that a command runs as.
type User struct {
	UID, GID uint32
	Groups   []uint32 // with GID, which a program that changes its group can't lose then
	Name     string   // "" when /etc/passwd does not know it
	Home     string
	Shell    string // "" when it names none
}

const (
	// MaxSize bounds what is read of an account file, which the sandbox can write.
	MaxSize   = 4 << 20
	maxGroups = 65536 // NGROUPS_MAX
)

// Resolve resolves name|uid[:group|gid], as Docker does: a number is an ID, whatever has it as its
// name, and need not be listed; an explicit group replaces all others. Empty is root. passwd and
// group open the account files.
func Resolve(spec string, passwd, group func() io.ReadCloser) (User, error) {
	user, grp, explicit := strings.Cut(spec, ":")
	if user == "" {
		user = "0"
	}
	id := User{Home: "/"}
	uid, numeric, err := number(user)
	if err != nil {
		return id, err
	}
	if found := findPasswd(passwd, func(name string, n uint32) bool { return numeric && n == uid || !numeric && name == user }); found != nil {
		id = *found
	} else if numeric {
		id.UID = uid
	} else {
		return id, fmt.Errorf("no user %q in the sandbox's /etc/passwd", user)
	}

	switch {
	case explicit && grp != "":
		gid, numeric, err := number(grp)
		if err != nil {
			return id, err
		}
		if !numeric {
			if gid, numeric = findGroup(group, grp); !numeric {
				return id, fmt.Errorf("no group %q in the sandbox's /etc/group", grp)
			}
		}
		id.GID, id.Groups = gid, []uint32{gid}
	case id.Name != "":
		id.Groups = memberships(group, id.Name, id.GID)
	default:
		id.Groups = []uint32{id.GID}
	}
	return id, nil
}

// number parses an ID of a spec, if it is one. It fails for those that Docker refuses.
func number(s string) (id uint32, numeric bool, err error) {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return 0, false, nil
	case err != nil || n < 0 || n > math.MaxInt32:
		return 0, true, fmt.Errorf("ID %s is not from 0 to %d", s, math.MaxInt32)
	}
	return uint32(n), true, nil
}

// listed returns the ID in a field of an account file.
func listed(field []byte) (uint32, bool) {
	n, err := strconv.ParseInt(string(field), 10, 64)
	return uint32(n), err == nil && n >= 0 && n < 1<<32-1 // the last one means "no change" to the kernel
}

// lines calls f with the fields of each line until it returns false.
func lines(open func() io.ReadCloser, f func(fields [][]byte) bool) {
	file := open()
	defer file.Close()
	sc := bufio.NewScanner(io.LimitReader(file, MaxSize))
	sc.Buffer(make([]byte, 0, 4096), MaxSize)
	for sc.Scan() {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if !f(bytes.Split(line, []byte(":"))) {
			return
		}
	}
}

// findPasswd finds the first entry that is wanted.
func findPasswd(open func() io.ReadCloser, wanted func(name string, uid uint32) bool) (id *User) {
	lines(open, func(f [][]byte) bool {
		if len(f) < 6 {
			return true
		}
		uid, ok1 := listed(f[2])
		gid, ok2 := listed(f[3])
		if !ok1 || !ok2 || !wanted(string(f[0]), uid) {
			return true
		}
		id = &User{UID: uid, GID: gid, Name: string(f[0]), Home: string(f[5])}
		if id.Home == "" {
			id.Home = "/"
		}
		if len(f) > 6 {
			id.Shell = string(f[6])
		}
		return false
	})
	return id
}

func findGroup(open func() io.ReadCloser, name string) (gid uint32, found bool) {
	lines(open, func(f [][]byte) bool {
		if len(f) >= 3 && string(f[0]) == name {
			gid, found = listed(f[2])
		}
		return !found
	})
	return gid, found
}

// memberships returns the user's own group and those that list the user.
func memberships(open func() io.ReadCloser, name string, own uint32) []uint32 {
	gids := []uint32{own}
	lines(open, func(f [][]byte) bool {
		if len(f) < 4 {
			return true
		}
		for member := range bytes.SplitSeq(f[3], []byte(",")) {
			if string(member) == name {
				if gid, ok := listed(f[2]); ok && gid != own {
					gids = append(gids, gid)
				}
				break
			}
		}
		return len(gids) < maxGroups
	})
	return gids
}

// Names returns the names in an account file by their numbers. Of several names for one number the first one counts.
func Names(open func() io.ReadCloser) map[uint32]string {
	names := map[uint32]string{}
	lines(open, func(f [][]byte) bool {
		if len(f) < 3 {
			return true
		}
		if id, ok := listed(f[2]); ok && names[id] == "" {
			names[id] = string(f[0])
		}
		return true
	})
	return names
}
