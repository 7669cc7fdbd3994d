# Completion of sandbox for bash 4.1 and later. The program gives the words: sandbox __complete WORD...
_sandbox() {
	local rest=$COMP_LINE words=() piece word i
	for ((i = 0; i <= COMP_CWORD; i++)); do
		# bash separates words at : and =, too, the program at spaces alone.
		word=${rest#"${rest%%[![:space:]]*}"}
		[ "$word" != "$rest" ] || [ "$i" = 0 ] && words+=("")
		piece=${COMP_WORDS[i]}
		if [ "$i" = "$COMP_CWORD" ]; then # up to the cursor
			piece=${piece:0:COMP_POINT-(${#COMP_LINE}-${#word})}
		fi
		words[-1]+=$piece
		rest=${word#"$piece"}
	done
	local cur=${words[-1]} before=${words[-1]%"$piece"} reply directive
	[[ $piece != [:=] ]] || before=$cur # bash completes what follows it
	mapfile -t reply < <("${words[0]/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
	((${#reply[@]})) || return
	directive=${reply[-1]#:}
	unset 'reply[-1]'
	COMPREPLY=()
	((directive & 1)) && return            # an error
	((directive & 2)) && compopt -o nospace # the word goes on
	((directive & 4)) || compopt -o default # if there is no word, names of files
	for word in "${reply[@]}"; do
		[[ $word != "$cur"* ]] || COMPREPLY+=("${word#"$before"}")
	done
	# A word comes with its description after a tab, which is shown beside others and not inserted.
	for i in "${!COMPREPLY[@]}"; do
		word=${COMPREPLY[i]}
		COMPREPLY[i]=${word%%$'\t'*}
		if ((${#COMPREPLY[@]} > 1)) && [[ $word == *$'\t'?* && $COMP_TYPE != 37 && $COMP_TYPE != 42 ]]; then
			COMPREPLY[i]+="  (${word#*$'\t'})"
		fi
	done
}
complete -F _sandbox sandbox
