# Ansible, over OpenSSH's ssh, sftp and scp.
export LC_ALL=C.UTF-8 ANSIBLE_TIMEOUT=500 ANSIBLE_LOCAL_TEMP=$PWD/local ANSIBLE_REMOTE_TEMP=/tmp/of-ansible.sh/ansible ANSIBLE_NOCOLOR=1 ANSIBLE_RETRY_FILES_ENABLED=0 ANSIBLE_SSH_CONTROL_PATH_DIR=$PWD/cp
printf 'box ansible_ssh_common_args="-F %s/config"  ansible_python_interpreter=/opt/sshd/python3\n' "$PWD" >hosts
cat >play.yml <<'END'
- hosts: box
  gather_facts: false
  tasks:
    - raw: echo raw; exit 3
      register: raw
      failed_when: raw.rc != 3
    - copy: {src: here/sub/b, dest: "{{ there }}/b", mode: "0640"}
    - copy: {content: "a line\n", dest: "{{ there }}/a"}
    - lineinfile: {path: "{{ there }}/a", line: another}
    - file: {path: "{{ there }}/dir", state: directory, mode: "0750"}
    - file: {src: a, dest: "{{ there }}/link", state: link}
    - template: {src: here/a, dest: "{{ there }}/made"}
    - command: {argv: [sh, -c, 'echo out; echo err >&2; exit 4']}
      register: said
      failed_when: said.rc != 4 or said.stdout != "out" or said.stderr != "err"
    - fetch: {src: "{{ there }}/a", dest: here/back, flat: true}
    - copy: {src: here/a, dest: "{{ there }}/by-pipe"}
      vars: {ansible_ssh_transfer_method: piped}
    - copy: {src: here/a, dest: "{{ there }}/by-scp"}
      vars: {ansible_ssh_transfer_method: scp}
    - stat: {path: "{{ there }}/b"}
      register: b
    - debug: {msg: "{{ b.stat.checksum }} {{ b.stat.mode }} {{ b.stat.size }}"}
END
timeout 1200 ansible-playbook -i hosts -e "there=$THERE" play.yml 2>&1 | grep -v '^$'
rm -rf cp local
