// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/completion.h"

#include <algorithm>

#include "launcher/options/option_table.h"

namespace ddprun::launcher {
namespace {

// Where words of the command line are walked through to find PROGRAM: `flag` is the one that waits
// for its value. In bash "=" is a word of its own.
constexpr char kBash[] = R"sh(# bash completion of ddprun: eval "$(ddprun --print-completion bash)"
_ddprun() {
  local cur=${COMP_WORDS[COMP_CWORD]} word flag= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    case $word in
      =) ;;
      --) [ -z "$flag" ] && { ((i++)); break; } ;;
      -*) case " @VALUE_FLAGS@ " in *" ${word//_/-} "*) flag=${word//_/-} ;; *) flag= ;; esac ;;
      *) if [ -n "$flag" ]; then flag=; else break; fi ;;
    esac
  done
  [ "$cur" = = ] && cur=
  if [ "$i" -lt "$COMP_CWORD" ]; then
    if declare -F _command_offset >/dev/null; then _command_offset "$i"; else compopt -o default; fi
    return
  fi
  case $flag in
    '') case $cur in
          -*) COMPREPLY=($(compgen -W "@FLAGS@" -- "$cur")) ;;
          *) compopt -o filenames; COMPREPLY=($(compgen -A command -A file -- "$cur")) ;;
        esac ;;
@VALUE_CASES@  esac
}
complete -F _ddprun ddprun
)sh";

constexpr char kZsh[] = R"sh(#compdef ddprun
# zsh completion of ddprun: a file named _ddprun in a directory of $fpath
_ddprun() {
  _arguments -S -A '-*' \
@SPECS@    '(-)1:program: _alternative "commands:command:_command_names -e" "files:file:_files"' \
    '*:argument:_files'
}
if [ "$funcstack[1]" = _ddprun ]; then _ddprun "$@"; else compdef _ddprun ddprun; fi
)sh";

constexpr char kFish[] = R"sh(# fish completion of ddprun: ddprun --print-completion fish | source
function __ddprun_before_program
  set -l waits no
  for word in (commandline -opc)[2..]
    switch $word
      case '--*=*'
        set waits no
      case '-*'
        set waits no
        contains -- (string replace -a -- _ - $word) @VALUE_FLAGS@; and set waits yes
      case '*'
        test $waits = no; and return 1
        set waits no
    end
  end
  return 0
end
complete -c ddprun -n __ddprun_before_program -a '(__fish_complete_command)'
)sh";

constexpr char kTcsh[] = R"sh(# tcsh completion of ddprun: eval `ddprun --print-completion tcsh`
complete ddprun 'c/--/(@NAMES@)/' 'p/*/f/';
)sh";

void replace(std::string& text, std::string_view mark, std::string_view by) {
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += by.size()) {
    text.replace(at, mark.size(), by);
  }
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

bool wants_file(const Option& option) {
  return option.value.find("FILE") != std::string::npos ||
         option.value.find("PATH") != std::string::npos;
}
bool wants_directory(const Option& option) { return option.value.find("DIR") != std::string::npos; }

std::vector<std::string> flags(bool only_with_value) {
  std::vector<std::string> words;
  for (const Option& option : option_table()) {
    if (only_with_value && option.is_switch()) continue;
    words.push_back("--" + option.name);
    if (only_with_value && option.letter != 0) words.push_back(std::string("-") + option.letter);
  }
  return words;
}

// In single quotes, where `also` are letters that want a "\" there.
std::string single_quoted(std::string_view text, std::string_view also = {}) {
  std::string result;
  for (const char letter : text) {
    if (letter == '\'') {
      result += R"('\'')";
    } else {
      if (also.find(letter) != std::string_view::npos) result += '\\';
      result += letter;
    }
  }
  return result;
}

std::string bash() {
  std::string cases;
  for (const Option& option : option_table()) {
    const std::string words = joined(value_words(option));
    std::string generator;
    if (!words.empty()) generator = "-W \"" + words + "\"";
    if (wants_file(option)) generator = "-A file";
    if (wants_directory(option)) generator = "-A directory";
    if (generator.empty()) continue;
    const std::string names =
        "--" + option.name + (option.letter == 0 ? "" : std::string("|-") + option.letter);
    cases += "    " + names + ") COMPREPLY=($(compgen " + generator + " -- \"$cur\")) ;;\n";
  }
  std::string script = kBash;
  replace(script, "@VALUE_CASES@", cases);
  replace(script, "@VALUE_FLAGS@", joined(flags(true)));
  replace(script, "@FLAGS@", joined(flags(false)));
  return script;
}

std::string zsh() {
  std::string specs;
  for (const Option& option : option_table()) {
    std::string action;
    if (!option.is_switch()) {
      const std::string words = joined(value_words(option));
      action = "=:" + single_quoted(option.value, ":\\") + ":" +
               (words.empty() ? "" : "(" + words + ")");
      if (wants_file(option)) action += "_files";
      if (wants_directory(option)) action += "_files -/";
    }
    const std::string help = "[" + single_quoted(option.help, "[]:\\") + "]";
    const std::string equals = action.empty() ? "" : "=";
    const std::string rest = action.empty() ? "" : action.substr(1);
    specs += "    '*--" + option.name + equals + help + rest + "' \\\n";
    if (option.letter != 0) {
      specs += std::string("    '*-") + option.letter + help + rest + "' \\\n";
    }
  }
  std::string script = kZsh;
  replace(script, "@SPECS@", specs);
  return script;
}

std::string fish() {
  std::string script = kFish;
  replace(script, "@VALUE_FLAGS@", joined(flags(true)));
  for (const Option& option : option_table()) {
    script += "complete -c ddprun -n __ddprun_before_program -l " + option.name;
    if (option.letter != 0) script += std::string(" -s ") + option.letter;
    const std::string words = joined(value_words(option));
    if (wants_file(option)) {
      script += " -rF";
    } else if (wants_directory(option)) {
      script += " -xa '(__fish_complete_directories)'";
    } else if (!option.is_switch()) {
      script += words.empty() ? " -x" : " -xa '" + words + "'";
    }
    script += " -d '" + single_quoted(option.help) + "'\n";
  }
  return script;
}

std::string tcsh() {
  std::string names;
  for (const Option& option : option_table()) names += (names.empty() ? "" : " ") + option.name;
  std::string script = kTcsh;
  replace(script, "@NAMES@", names);
  return script;
}

}  // namespace

std::vector<std::string> value_words(const Option& option) {
  std::vector<std::string> words;
  std::string_view rest = option.value;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find('|'));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    const bool is_literal =
        !word.empty() &&
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
    if (is_literal) words.emplace_back(word);
  }
  return words;
}

std::string completion_script(std::string_view shell) {
  if (shell == "bash") return bash();
  if (shell == "zsh") return zsh();
  if (shell == "fish") return fish();
  if (shell == "tcsh") return tcsh();
  return {};
}

}  // namespace ddprun::launcher
