// SPDX-License-Identifier: Apache-2.0
#include "common/completion.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/text.h"

namespace ddprun {
namespace {

using Flags = std::vector<CompletedFlag>;

// The script goes through the words of the command line to find PROGRAM or the command. `flag` is
// the one that waits for its value. In bash "=" is a word of its own.
constexpr char kBash[] = R"sh(# bash completion of @NAME@: eval "$(@NAME@ --print-completion bash)"
_@NAME@() {
  local cur=${COMP_WORDS[COMP_CWORD]} word flag= command= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    case $word in
      =) ;;
      --) [ -z "$flag" ] && { ((i++)); break; } ;;
      -*) case " @VALUE_FLAGS@ " in *" ${word//_/-} "*) flag=${word//_/-} ;; *) flag= ;; esac ;;
      *) if [ -n "$flag" ]; then flag=; else @WORD@; fi ;;
    esac
  done
  [ "$cur" = = ] && cur=
@OF_PROGRAM@  case $flag in
    '') case $command:$cur in
@FLAG_CASES@        esac ;;
@VALUE_CASES@  esac
}
complete -F _@NAME@ @NAME@
)sh";

constexpr char kBashOfProgram[] = R"sh(  if [ "$i" -lt "$COMP_CWORD" ]; then
    if declare -F _command_offset >/dev/null; then _command_offset "$i"; else compopt -o default; fi
    return
  fi
)sh";

// Flags spelled with "_" are accepted, but marked with "!": they are offered only after a "_".
constexpr char kZsh[] = R"sh(#compdef @NAME@
# zsh completion of @NAME@: a file named _@NAME@ in a directory of $fpath
_@NAME@() {
  local hide='!' line state found=1
  [[ $PREFIX == *_* ]] && hide=
  _arguments -S @MODE@ \
@SPECS@    @REST@ && found=0
@COMMANDS@  return found
}
if [ "$funcstack[1]" = _@NAME@ ]; then _@NAME@ "$@"; else compdef _@NAME@ @NAME@; fi
)sh";

constexpr char kFish[] = R"sh(# fish completion of @NAME@: @NAME@ --print-completion fish | source
)sh";

constexpr char kFishOfProgram[] = R"sh(function __ddprun_before_program
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
function __ddprun_underscored
  __ddprun_before_program; and string match -q '*_*' -- (commandline -ct)
end
complete -c ddprun -n __ddprun_before_program -a '(__fish_complete_command)'
)sh";

constexpr char kTcsh[] = R"sh(# tcsh completion of @NAME@: eval `@NAME@ --print-completion tcsh`
complete @NAME@ 'c/--/(@NAMES@)/' 'p/*/f/';
)sh";

void replace(std::string& text, std::string_view mark, std::string_view by) {
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += by.size()) {
    text.replace(at, mark.size(), by);
  }
}

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Returns the flags whose names have a "-", spelled with "_".
Flags with_underscores(const Flags& flags) {
  Flags spelled;
  for (CompletedFlag flag : flags) {
    if (flag.name.find('-') == std::string::npos) continue;
    flag.name = underscored(std::move(flag.name));
    flag.letter = 0;
    spelled.push_back(std::move(flag));
  }
  return spelled;
}

// Returns the flags of the program and its commands; of flags with one name only the first.
Flags all_flags(const CompletedProgram& program) {
  Flags all = program.flags;
  for (const CompletedCommand& command : program.commands) {
    all.insert(all.end(), command.flags.begin(), command.flags.end());
  }
  std::set<std::string> names;
  std::erase_if(all, [&](const CompletedFlag& flag) { return !names.insert(flag.name).second; });
  return all;
}

// Returns the words that a flag's value may be: "N|auto|gpu" → auto, gpu.
std::string value_words(const CompletedFlag& flag) {
  std::vector<std::string_view> words;
  std::string_view rest = flag.value;
  while (!rest.empty()) {
    const std::string_view word = take_until(rest, "|");
    const bool is_literal =
        !word.empty() &&
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
    if (is_literal) words.push_back(word);
  }
  return listed(words, " ");
}

bool wants_file(const CompletedFlag& flag) {
  return flag.value.find("FILE") != std::string::npos ||
         flag.value.find("PATH") != std::string::npos;
}
bool wants_directory(const CompletedFlag& flag) {
  return flag.value.find("DIR") != std::string::npos;
}

std::string dashed(const Flags& flags, bool only_with_value = false) {
  std::vector<std::string> words;
  for (const CompletedFlag& flag : flags) {
    if (only_with_value && flag.value.empty()) continue;
    words.push_back("--" + flag.name);
    if (only_with_value && flag.letter != 0) words.push_back(std::string("-") + flag.letter);
  }
  return listed(words, " ");
}

// Puts a text into single quotes. `also` are letters that need a "\" there.
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

std::string bash(const CompletedProgram& program) {
  const auto offer = [](const std::string& pattern, const std::string& words) {
    return "          " + pattern + ") COMPREPLY=($(compgen -W \"" + words +
           "\" -- \"$cur\")) ;;\n";
  };
  const Flags all = all_flags(program);
  std::string values;
  for (const CompletedFlag& flag : all) {
    const std::string words = value_words(flag);
    std::string generator;
    if (!words.empty()) generator = "-W \"" + words + "\"";
    if (wants_file(flag)) generator = "-A file";
    if (wants_directory(flag)) generator = "-A directory";
    if (generator.empty()) continue;
    const std::string names =
        "--" + flag.name + (flag.letter == 0 ? "" : std::string("|-") + flag.letter);
    values += "    " + names + ") COMPREPLY=($(compgen " + generator + " -- \"$cur\")) ;;\n";
  }
  std::string flags;
  if (program.starts_another) flags += offer(":-*_*", dashed(with_underscores(program.flags)));
  flags += offer(":-*", dashed(program.flags));
  std::vector<std::string> names;
  for (const CompletedCommand& command : program.commands) {
    flags += offer(command.name + ":-*", dashed(command.flags));
    names.push_back(command.name);
  }
  if (!names.empty()) flags += offer(":*", listed(names, " "));
  flags += program.starts_another ? "          *) compopt -o filenames; "
                                    "COMPREPLY=($(compgen -A command -A file -- \"$cur\")) ;;\n"
                                  : "          *) compopt -o default ;;\n";
  std::string script = kBash;
  replace(script, "@WORD@", program.starts_another ? "break" : R"(: "${command:=$word}")");
  replace(script, "@OF_PROGRAM@", program.starts_another ? kBashOfProgram : "");
  replace(script, "@VALUE_CASES@", values);
  replace(script, "@FLAG_CASES@", flags);
  replace(script, "@VALUE_FLAGS@", dashed(all, true));
  return script;
}

// `hide` is put before each flag: the mark of a spelling that is not offered by itself.
std::string zsh_specs(const Flags& flags, const char* hide = "") {
  std::string specs;
  for (const CompletedFlag& flag : flags) {
    std::string action;
    if (!flag.value.empty()) {
      const std::string words = value_words(flag);
      action =
          ":" + single_quoted(flag.value, ":\\") + ":" + (words.empty() ? "" : "(" + words + ")");
      if (wants_file(flag)) action += "_files";
      if (wants_directory(flag)) action += "_files -/";
    }
    const std::string rest = "[" + single_quoted(flag.help, "[]:\\") + "]" + action + "' \\\n";
    specs += concat("    ", hide, "'*--", flag.name, action.empty() ? "" : "=", rest);
    if (flag.letter != 0) specs += concat("    '*-", flag.letter, rest);
  }
  return specs;
}

std::string zsh(const CompletedProgram& program) {
  std::string specs = zsh_specs(program.flags), commands;
  std::string mode = "-A '-*'", rest = "'*:argument:_files'";
  if (program.starts_another) {
    specs += zsh_specs(with_underscores(program.flags), "$hide");
    rest =
        "'(-)1:program: _alternative \"commands:command:_command_names -e\" "
        "\"files:file:_files\"' \\\n    '*:argument:_files'";
  } else if (program.commands.empty()) {
    mode.clear();
  } else {
    mode = "-C " + mode;
    std::string names;
    commands = "  case $state:$words[1] in\n";
    for (const CompletedCommand& command : program.commands) {
      names += concat(" ", command.name, "\\:\"", single_quoted(command.help, ":\\\"()"), "\"");
      commands += concat("    rest:", command.name, ") _arguments -S \\\n",
                         zsh_specs(command.flags), "    '*:argument:_files' && found=0 ;;\n");
    }
    commands += "  esac\n";
    rest = concat("'(-)1:command:((", names, "))' \\\n    '*::argument:->rest'");
  }
  std::string script = kZsh;
  replace(script, "@SPECS@", specs);
  replace(script, "@MODE@", mode);
  replace(script, "@REST@", rest);
  replace(script, "@COMMANDS@", commands);
  return script;
}

std::string fish_lines(const std::string& program, const Flags& flags, const std::string& where) {
  std::string lines;
  const std::string begin =
      concat("complete -c ", program, where.empty() ? "" : concat(" -n '", where, "'"));
  for (const CompletedFlag& flag : flags) {
    lines += begin + " -l " + flag.name;
    if (flag.letter != 0) lines += std::string(" -s ") + flag.letter;
    const std::string words = value_words(flag);
    if (wants_file(flag)) {
      lines += " -rF";
    } else if (wants_directory(flag)) {
      lines += " -xa '(__fish_complete_directories)'";
    } else if (!flag.value.empty()) {
      lines += words.empty() ? " -x" : " -xa '" + words + "'";
    }
    lines += " -d '" + single_quoted(flag.help) + "'\n";
  }
  return lines;
}

std::string fish(const CompletedProgram& program) {
  std::string script = kFish;
  if (program.starts_another) {
    script += kFishOfProgram;
    replace(script, "@VALUE_FLAGS@", dashed(program.flags, true));
    script += fish_lines(program.name, program.flags, "__ddprun_before_program");
    return script +
           fish_lines(program.name, with_underscores(program.flags), "__ddprun_underscored");
  }
  const bool has_commands = !program.commands.empty();
  script += fish_lines(program.name, program.flags, has_commands ? "__fish_use_subcommand" : "");
  for (const CompletedCommand& command : program.commands) {
    script += concat("complete -c ", program.name, " -n __fish_use_subcommand -xa ", command.name,
                     " -d '", single_quoted(command.help), "'\n");
    script +=
        fish_lines(program.name, command.flags, "__fish_seen_subcommand_from " + command.name);
  }
  return script;
}

std::string tcsh(const CompletedProgram& program) {
  std::vector<std::string> names;
  for (const CompletedFlag& flag : all_flags(program)) names.push_back(flag.name);
  std::string script = kTcsh;
  replace(script, "@NAMES@", listed(names, " "));
  return script;
}

}  // namespace

std::string completion_script(const CompletedProgram& program, std::string_view shell) {
  std::string script = shell == "bash"   ? bash(program)
                       : shell == "zsh"  ? zsh(program)
                       : shell == "fish" ? fish(program)
                       : shell == "tcsh" ? tcsh(program)
                                         : "";
  replace(script, "@NAME@", program.name);
  return script;
}

std::string completed_value(const std::string& type_name) {
  const std::size_t set = type_name.find('{');
  if (set == std::string::npos) return type_name.starts_with("TEXT") ? "FILE" : type_name;
  std::string words = type_name.substr(set + 1, type_name.find('}') - set - 1);
  std::replace(words.begin(), words.end(), ',', '|');
  return words;
}

}  // namespace ddprun
