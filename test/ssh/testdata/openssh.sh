# OpenSSH's ssh, scp and sftp.
ssh="ssh -F config box"
$ssh 'echo out; echo err >&2; exit 3' 2>stderr; echo "exit $?"; cat stderr; rm stderr
(timeout 500 $ssh yes; echo "exit $?" >status) | head -n 3; cat status
yes | timeout 500 $ssh 'head -n 1; exit 4'; echo "exit $?"
$ssh 'kill -TERM $$'; echo "exit $?"
$ssh "cat >$THERE/fed" <here/sub/b; $ssh "cat $THERE/fed" | md5sum
printf 'echo $((6*7))\nexit 5\n' | timeout 500 ssh -F config -T box; echo "exit $?"
timeout 500 ssh -F config -n box 'sleep 1001 & echo started' >started &
until grep -s started started || ! kill -0 $!; do sleep 0.1; done
$ssh 'pkill -f "sleep 1001"'; wait $!; echo "exit $?"
sftp -F config -b - box <<END 2>&1
cd $THERE
lcd here
put -p a
put -r sub
ln -s a link
ln -s ../up up
ln a hard
-rename a sub
rename hard moved
chmod 640 a
chown 1000 a
-mkdir sub
cp a copy
ls -la
get -r sub again
reget a
put a grown
-rm nothing
-rmdir sub
!printf 'first\nsecond\n' >a
reput a grown
rename -l grown hard
-rename -l moved hard
chmod -h 600 link
chgrp 1001 copy
put -f -R sub fresh
get -f -p sub/b b
!head -c 10 sub/b >part
reget sub/b part
!head -c 10 sub/b >part
get -a sub/b part
-reget nothing part
-ln -s copy link
ln -s "two  words" odd
-readlink odd
lmkdir local
-rmdir nothing
rm link odd
ls -ln
ls -1t sub
quit
END
echo "sftp $?"
scp -q -F config -r -p here "box:$THERE/by-sftp"; echo "scp $?"
scp -q -O -F config -r -p here "box:$THERE/by-scp"; echo "scp $?"
scp -q -F config "box:$THERE/by-sftp/two words" "here/back"; echo "scp $?"
$ssh 'echo home >~/of-home'; scp -q -F config 'box:~/of-home' 'box:of-home' here/sub; echo "scp $?"
scp -q -F config "box:$THERE/nothing" here; echo "scp $?"
scp -q -O -F config "box:$THERE/nothing" here; echo "scp $?"
scp -q -O -F config -p "box:$THERE/by-scp/*" here/local 2>&1 | sort; echo "scp $?"
scp -q -3 -F config -r -p "box:$THERE/by-sftp" "box:$THERE/by-three"; echo "scp $?"
scp -q -3 -O -F config -r -p "box:$THERE/by-sftp" "box:$THERE/by-old-three"; echo "scp $?"
scp -q -3 -F config "box:$THERE/nothing" "box:$THERE/by-sftp/a" "box:$THERE/by-three"; echo "scp $?"
scp -q -O -F config here/a here/sub/b "box:$THERE/no-directory"; echo "scp $?"
scp -q -F config here/a here/sub/b "box:$THERE/no-directory"; echo "scp $?"
scp -q -O -F config "box:$THERE/by-scp/two words" here/words; echo "scp $?"
