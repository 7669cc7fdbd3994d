# rsync, over OpenSSH's ssh.
ssh="ssh -F config box"
sync() { timeout 500 rsync -e "ssh -F config" "$@" 2>&1; echo "rsync $?"; }
fail() { sync "$@" | grep '^rsync [0-9]'; } # what the other side says of its end is lost at times
cat >describe.py <<'END'
import hashlib, os, stat, sys
for root, dirs, files in os.walk(sys.argv[1]):
    dirs.sort()
    for name in sorted(dirs + files):
        p = os.path.join(root, name)
        s = os.lstat(p)
        link, regular = stat.S_ISLNK(s.st_mode), stat.S_ISREG(s.st_mode)
        print(os.path.relpath(p, sys.argv[1]), oct(s.st_mode), s.st_nlink if regular else "", s.st_uid, s.st_gid, s.st_size if regular else "", regular and s.st_blocks * 512 < s.st_size,
              s.st_mtime_ns if s.st_mtime < 1600000000 else "now", os.readlink(p) if link else "", [] if link else [(a, os.getxattr(p, a)) for a in sorted(os.listxattr(p))],
              hashlib.md5(open(p, "rb").read()).hexdigest() if regular else "")
END
describe() { echo "$1 here"; /usr/bin/python3 describe.py "$1"; }
describe_there() { echo "$1 there"; $ssh /opt/sshd/python3 - "$THERE/$1" <describe.py; }
mkdir -p all/dir/deep all/empty
cp here/sub/b all/dir/b; ln all/dir/b all/hard; echo x >"all/a name'\$\\ of *bytes"
ln -s dir/b all/link; ln -s /nowhere all/dangling; ln -s ../.. all/dir/up; mkfifo all/pipe
echo owned >all/owned; chown 1000:1001 all/owned; chmod 4751 all/owned; chmod 2770 all/dir/deep; chmod 000 all/empty
truncate -s 3M all/sparse; printf end >>all/sparse
/usr/bin/python3 - <<'END'
import os, struct
os.setxattr("all/hard", "user.note", b"\0an attribute")
os.setxattr("all/dir", "system.posix_acl_access", struct.pack("<I" + "HHI" * 5, 2, 1, 7, 0xffffffff, 2, 7, 1000, 4, 5, 0xffffffff, 16, 7, 0xffffffff, 32, 5, 0xffffffff))
os.utime("all/link", ns=(1, 1234567890123456789), follow_symlinks=False)
for name in ["all/dir/b", "all/dir/deep", "all/dir", "all"]:
    os.utime(name, ns=(1, 1234567890987654321))
END
sync -aHAXS --stats --itemize-changes all/ "box:$THERE/all" | grep -v -i -e 'per second' -e speedup -e 'time:' -e '^sent' -e 'bytes [sr]' -e '^File list size' | sort
describe all; describe_there all
sync -aHAXS "box:$THERE/all/" back; describe back
sync -aHAXS --itemize-changes all/ "box:$THERE/all"
sync -aHAXS --itemize-changes "box:$THERE/all/" back

# Onto what is there already.
cp -a here some; sync -a some/ "box:$THERE/some"
printf more >>some/a; sync --append -t --itemize-changes some/a "box:$THERE/some/a"
printf XX | dd of=some/sub/b bs=1 seek=99999 conv=notrunc 2>/dev/null; touch -d 2011-11-11 some/sub/b
before=$($ssh stat -c %i "$THERE/some/sub/b")
sync --inplace --no-whole-file -t --itemize-changes some/sub/b "box:$THERE/some/sub/b"
[ "$before" = "$($ssh stat -c %i "$THERE/some/sub/b")" ]; echo "the same file $?"
printf YY | dd of=some/sub/b bs=1 seek=9 conv=notrunc 2>/dev/null; touch -d 2012-12-12 some/sub/b
sync --append-verify --itemize-changes some/sub/b "box:$THERE/some/sub/b"; sync --checksum --no-whole-file --itemize-changes some/sub/b "box:$THERE/some/sub/b"
$ssh "cd '$THERE/some' && echo kept >only && mkdir -p extra/deep && touch extra/deep/f"
rm some/empty; touch -d 2010-10-10 some some/sub # at other times than there, by more than a second
sync -a --delete --dry-run --itemize-changes some/ "box:$THERE/some"
sync -a --delete --exclude /only --backup --suffix .old --itemize-changes some/ "box:$THERE/some"
$ssh "cd '$THERE/some' && mkdir -p full/of && touch full/of/files"
echo file >some/full; fail -a some/full "box:$THERE/some/"; sync -a --force --delete some/ "box:$THERE/some"
sync -a --link-dest "$THERE/some" some/ "box:$THERE/linked"; sync -aL all/link "box:$THERE/followed"; sync -aR some/./sub "box:$THERE/relative"
sync --remove-source-files -a some/a "box:$THERE/moved"; ls some
printf 'two words\nsub/b\nnothing\n' | fail -a --files-from - here "box:$THERE/chosen"
sync -az --chmod=D700,F640 --chown=1000:node --info=name here "box:$THERE/changed"
sync --list-only "box:$THERE/changed/here/" | sed 's,20[2-9][0-9]/../..,today,'

# A transfer that is cut off, and goes on.
fail -t --partial --rsync-path 'ulimit -f 100; rsync' here/sub/b "box:$THERE/cut"
$ssh "wc -c '$THERE/cut'"
sync -t --partial --append --itemize-changes here/sub/b "box:$THERE/cut"
fail -t --partial-dir .part --rsync-path 'ulimit -f 100; rsync' here/sub/b "box:$THERE/cut2"
$ssh "ls -A '$THERE' '$THERE/.part'"
sync -t --partial-dir .part here/sub/b "box:$THERE/cut2"

# Errors.
fail "box:$THERE/nothing" here
fail here/a "box:$THERE/no/such/directory"
fail -a here box:/proc/nothing
fail --rsync-path 'echo noise; rsync' here/a "box:$THERE/a"
describe_there .
chmod 700 all/empty back/empty; rm -r all back some
