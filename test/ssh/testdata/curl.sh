# curl, with libssh2.
curl="curl -sS -k --key $KEY --pubkey $KEY.pub -u root:"
url=127.0.0.1:$PORT$THERE
$curl -T here/sub/b sftp://$url/b; echo "upload $?"
$curl sftp://$url/b | md5sum
$curl -T here/a sftp://$url/log; $curl -a -T here/a sftp://$url/log; echo "append $?"; $curl sftp://$url/log
$curl --ftp-create-dirs -T here/a sftp://$url/x/y/a; echo "create $?"
$curl -Q "-mkdir $THERE/d" -Q "-rename $THERE/log $THERE/d/log" -Q "-symlink d $THERE/to-d" -Q "-chmod 600 $THERE/b" sftp://$url/b -o /dev/null; echo "quote $?"
$curl -Q "-rename $THERE/b $THERE/d/log" sftp://$url/b -o /dev/null 2>&1; echo "rename $?"
$curl -r 2-5 sftp://$url/d/log; echo; echo "range $?"
$curl sftp://$url/ | sort
$curl sftp://$url/nothing 2>&1; echo "missing $?"
$curl -T here/sub/b scp://$url/by-scp; echo "scp $?"; $curl scp://$url/by-scp | md5sum
