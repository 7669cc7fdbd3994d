# PuTTY's plink, psftp and pscp.
puttygen "$KEY" -O private -o key.ppk --new-passphrase /dev/null 2>/dev/null || puttygen "$KEY" -O private -o key.ppk
print=$(ssh-keyscan -T 500 -p "$PORT" -t ed25519 127.0.0.1 2>/dev/null | ssh-keygen -l -f - | cut -d' ' -f2)
options="-batch -P $PORT -i key.ppk -hostkey $print"
timeout 500 plink $options root@127.0.0.1 'echo out; echo err >&2; exit 3' 2>stderr; echo "exit $?"; cat stderr; rm stderr
timeout 500 plink $options root@127.0.0.1 md5sum <here/sub/b; echo "exit $?"
cat >batch <<END
cd $THERE
put here/a
put here/sub/b
mkdir d
mv a d
chmod 640 b
reput here/sub/b b
ls d
get b here/back
del nothing
END
timeout 500 psftp $options -b batch -be root@127.0.0.1 2>&1; echo "psftp $?"
timeout 500 pscp -q $options -r here root@127.0.0.1:$THERE/tree; echo "pscp $?"
timeout 500 pscp -q -scp $options here/a root@127.0.0.1:$THERE/by-scp; echo "pscp $?"
