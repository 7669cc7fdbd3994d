# lftp, over OpenSSH's ssh.
timeout 500 lftp -c "set sftp:connect-program 'ssh -F $PWD/config -a -x'; set sftp:auto-confirm yes; set net:max-retries 1; set cmd:fail-exit no
open -u root, sftp://box
mirror -R here $THERE/tree
cd $THERE
ln -s tree/a link
mv tree/a tree/moved
chmod 600 tree/moved
cls -l --sort=name tree
mirror tree here/back
rm nothing
rm -r tree/sub
" 2>&1 | grep -v -i -e rate -e transferred; echo "lftp $?"
