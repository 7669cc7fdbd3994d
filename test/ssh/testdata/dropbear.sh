# Dropbear's client.
dropbearconvert openssh dropbear "$KEY" key 2>/dev/null
dbclient="timeout 500 dbclient -y -y -T -p $PORT -i key root@127.0.0.1"
$dbclient 'echo out; echo err >&2; exit 3' 2>stderr; echo "exit $?"; grep -v -i -e host -e fingerprint -e '^$' stderr; rm stderr
$dbclient 'cat | md5sum' <here/sub/b 2>/dev/null; echo "exit $?"
# To a file: a client that can write only a part, as to a full pipe, never ends if the channel's close comes before the rest.
$dbclient "head -c 100000 /dev/zero" </dev/null >zeros 2>/dev/null; md5sum <zeros; rm zeros
$dbclient 'exit 9' </dev/null 2>/dev/null; echo "exit $?"
