# rclone, with golang.org/x/crypto/ssh.
rclone="timeout 500 rclone -q --contimeout 500s --config /dev/null --sftp-host 127.0.0.1 --sftp-port $PORT --sftp-user root --sftp-key-file $KEY"
$rclone copy here ":sftp:$THERE/tree" 2>&1; echo "copy $?"
$rclone check here ":sftp:$THERE/tree" 2>&1; echo "check $?"
$rclone lsf -R ":sftp:$THERE" 2>&1 | sort
$rclone moveto ":sftp:$THERE/tree/a" ":sftp:$THERE/moved" 2>&1; echo "move $?"
echo new >here/a; $rclone sync here ":sftp:$THERE/tree" 2>&1; echo "sync $?"
$rclone cat ":sftp:$THERE/tree/a" 2>&1; echo "cat $?"
$rclone about ":sftp:$THERE" >/dev/null 2>&1; echo "about $?"
