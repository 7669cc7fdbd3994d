# sshfs: a file system of the kernel's, over SFTP.
mkdir mnt
timeout 500 sshfs -F "$PWD/config" "box:$THERE" mnt || exit
cp -a here mnt/tree; echo "cp $?"
diff -r here mnt/tree; echo "diff $?"
echo more >>mnt/tree/a; cat mnt/tree/a
printf X | dd of=mnt/tree/sub/b bs=1 seek=3 conv=notrunc 2>/dev/null; head -c 6 mnt/tree/sub/b
truncate -s 5 mnt/tree/empty; od -c mnt/tree/empty
ln -s ../tree/a mnt/tree/link; readlink mnt/tree/link; cat mnt/tree/link
ln mnt/tree/a mnt/tree/hard; echo "ln $?"
mv mnt/tree/a "mnt/tree/two words"; echo "mv $?"
chmod 750 mnt/tree/sub; touch -d 2009-02-13T23:31:30 mnt/tree/sub/b
mkdir mnt/new && rmdir mnt/new; echo "rmdir $?"
rmdir mnt/tree 2>&1; rm mnt/nothing 2>&1
find mnt/tree -printf '%P %y %m %s\n' | sort
(cd mnt/tree && sha256sum sub/b "two words")
rm -r mnt/tree/sub; echo "rm $?"
df mnt >/dev/null; echo "df $?"
fusermount3 -u mnt; echo "unmount $?"; rmdir mnt
