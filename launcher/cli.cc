// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "common/env_names.h"
#include "common/error.h"
#include "common/suggest.h"
#include "common/text.h"
#include "launcher/options/option_table.h"
#include "launcher/options/printed_texts.h"

namespace ddprun::launcher {
namespace {

// Names of flags in other launchers, and ours.
constexpr std::pair<const char*, const char*> kElsewhere[] = {
    {"-n", "nproc-per-node"},
    {"-np", "nproc-per-node"},
    {"--nprocs", "nproc-per-node"},
    {"--num-processes", "nproc-per-node"},
    {"--num-gpus", "nproc-per-node"},
    {"--gpus-per-node", "nproc-per-node"},
    {"--ntasks-per-node", "nproc-per-node"},
    {"-N", "nnodes"},
    {"--num-nodes", "nnodes"},
    {"--num-machines", "nnodes"},
    {"--machine-rank", "node-rank"},
    {"--main-process-ip", "master-addr"},
    {"--main-process-port", "master-port"},
    {"--machinefile", "hostfile"},
};

// Parses argv into options' values, PROGRAM and its arguments.
class ArgumentParser {
 public:
  // Adds to `problems` each flag that is unknown, lacks a value, or has one too many.
  ArgumentParser(const std::vector<std::string>& args, std::vector<std::string>& problems)
      : args_(args) {
    for (std::size_t i = 0; i < args.size(); ++i) {
      const std::string& arg = args[i];
      program_at_ = i;
      if (arg == "--") {
        program_at_ = i + 1;
        return;
      }
      if (arg.size() < 2 || arg[0] != '-') return;
      const std::string flag = arg[1] == '-' ? arg : without_letter(arg);
      const std::size_t equals = flag.find('=');
      const std::string name = flag.substr(0, equals);
      const Option* option = named(name);
      if (const Option* off = option == nullptr ? switched_off(name) : nullptr) {
        if (equals == std::string::npos) {
          take(*off, "off", problems);
        } else {
          problems.push_back(flag + ": this flag takes no value");
        }
        continue;
      }
      if (option == nullptr) {
        const Option* meant = nearest(name);
        problems.push_back("unknown flag " + name +
                           (meant == nullptr ? "" : " (did you mean --" + meant->name + "?)") +
                           "; flags of the program come after its name");
        // If the intended flag takes a value, that is the next word.
        if (equals == std::string::npos && meant != nullptr && !meant->is_switch()) ++i;
        continue;
      }
      if (equals != std::string::npos) {
        take(*option, flag.substr(equals + 1), problems);
      } else if (option->is_switch()) {
        take(*option, arg == "-h" ? kShort : "true", problems);
      } else if (++i < args.size()) {
        take(*option, args[i], problems);
      } else {
        problems.push_back(name + ": wants a value, " + option->value);
      }
    }
    program_at_ = args.size();
  }

  static constexpr char kShort[] = "short";  // --help's value for -h

  const OptionValues& values() const { return values_; }
  // Returns the index of PROGRAM, or the number of arguments.
  std::size_t program_at() const { return program_at_; }

  // Returns torchrun's flags of size and place that come after PROGRAM but aren't given before it:
  // most likely they were meant for ddprun.
  std::vector<std::string> misplaced() const {
    std::vector<std::string> words;
    for (std::size_t i = program_at_ + 1; i < args_.size() && args_[i] != "--"; ++i) {
      if (!args_[i].starts_with("--")) continue;
      const std::string word = args_[i].substr(0, args_[i].find('='));
      const Option* option = find_option(word.substr(2));
      if (option != nullptr && says_where(*option) && !values_.has(option->name)) {
        words.push_back(word);
      }
    }
    return words;
  }

 private:
  void take(const Option& option, std::string text, std::vector<std::string>& problems) {
    if (option.is_switch() && text != kShort && !parse_switch(text)) {
      return problems.push_back("--" + option.name + "=" + text + ": this flag takes no value");
    }
    const OptionValue* before = values_.find(option.name);
    if (option.repeats && before != nullptr) text = before->text + option.separator + text;
    values_.set(option.name, {std::move(text), OptionValues::kCommandLine});
  }

  static bool says_where(const Option& option) {
    static const std::string size = size_options().front().group;
    static const std::string place = meeting_options().front().group;
    return is_torchruns(option) && (option.group == size || option.group == place);
  }

  // "-r" → "--redirects", "-r3" and "-r=3" → "--redirects=3". Other arguments stay unchanged.
  static std::string without_letter(const std::string& arg) {
    const bool has_value = arg.size() > 2;
    for (const Option& option : option_table()) {
      if (option.letter != arg[1] || (has_value && option.is_switch())) continue;
      if (!has_value) return "--" + option.name;
      return "--" + option.name + "=" + arg.substr(arg[2] == '=' ? 3 : 2);
    }
    return arg;
  }

  // "--nproc" → nproc-per-node. Returns torchrun's only flag that begins so, since torchrun takes
  // abbreviations, too; else our only one, else nullptr.
  static const Option* named(const std::string& name) {
    if (!name.starts_with("--") || name.size() == 2) return nullptr;
    if (const Option* whole = find_option(name.substr(2))) return whole;
    for (const bool torchruns_only : {true, false}) {
      std::vector<const Option*> found;
      for (const Option& option : option_table()) {
        if (torchruns_only && !is_torchruns(option)) continue;
        if (underscored(option.name).starts_with(underscored(name.substr(2)))) {
          found.push_back(&option);
        }
      }
      if (found.size() == 1) return found.front();
    }
    return nullptr;
  }

  // "--no-observe" → observe. Returns the option of that name whose values are on and off, or
  // nullptr. No source but the command line has this form, so that one value has one key.
  static const Option* switched_off(const std::string& name) {
    const std::string word = underscored(name);
    if (!word.starts_with("__no_")) return nullptr;
    const Option* option = find_option(word.substr(5));
    return option != nullptr && option->value == "on|off" ? option : nullptr;
  }

  // Returns the option that an unknown flag is most likely meant for, or nullptr.
  static const Option* nearest(const std::string& name) {
    for (const auto& [theirs, ours] : kElsewhere) {
      if (underscored(name) == underscored(theirs)) return find_option(ours);
    }
    std::vector<std::string> names;
    for (const Option& option : option_table()) names.push_back(option.name);
    return find_option(nearest_to(name, names));
  }

  const std::vector<std::string>& args_;
  OptionValues values_;
  std::size_t program_at_ = 0;
};

// Applies the rules that concern several options together.
void settle(const OptionValues& given, LaunchConfig& config, std::vector<std::string>& problems) {
  std::string problem =
      settle_signals(given.has("signals-to-handle"), given.has("preemption-signals"),
                     config.signals_to_handle, config.preemption);
  if (!problem.empty()) problems.push_back(std::move(problem));
  if (config.max_nodes == 1 && config.node_rank.value_or(0) > 0) {  // schedulers export node_rank
    config.notes.push_back("--node-rank=" + std::to_string(*config.node_rank) +
                           " is ignored with one node (--nnodes=1)");
    config.node_rank.reset();
  }
}

bool decides_nodes(const OptionValues& values) {
  constexpr std::array kOptions = {"nnodes", "standalone", "hosts", "hostfile", "standing-agents"};
  return std::ranges::any_of(kOptions, [&](const char* name) { return values.has(name); });
}

// Sets --nnodes, if nobody gave it, to the scheduler's number of nodes, less the spares. Returns
// the problem; empty: none.
std::string add_nodes_of(const SchedulerStep& step, OptionValues& values,
                         std::vector<std::string>& notes) {
  // Otherwise each node would run the whole job by itself.
  if (!step.problem.empty() && step.one_each && !step.may_be_alone) {
    return step.problem +
           "; give --nnodes and --rdzv-endpoint, or --nnodes=1, which is this node alone";
  }
  if (step.num_hosts < 2) return {};
  if (!step.one_each) {
    notes.push_back(
        concat("this node alone, of ", step.num_hosts, " that the ", step.name,
               " has: it runs not one ddprun on each; --nnodes=1 says that it is meant"));
    return {};
  }
  const OptionValue* spares = values.find("spares");
  const int num_spares =
      spares == nullptr ? 0 : parse_number(spares->text, step.num_hosts).value_or(0);
  const int num_nodes = std::max(1, step.num_hosts - num_spares);
  values.set("nnodes", {std::to_string(num_nodes), step.name});
  notes.push_back(concat("--nnodes=", num_nodes, ", those of the ", step.name));
  return {};
}

bool is_of_one_node(std::string_view option) {
  return option == "node-rank" || option == "local-addr" || option == "topology";
}

// Returns variables of this node's environment as flags for the other nodes' command lines.
std::vector<std::string> flags_of_environment(const Environment& environment,
                                              const OptionValues& typed) {
  OptionValues values;
  values.add_environment(environment);
  std::vector<std::string> flags;
  for (const Option& option : option_table()) {
    const OptionValue* value = values.find(option.name);
    if (value == nullptr || typed.has(option.name) || is_of_one_node(option.name)) continue;
    flags.push_back("--" + option.name + "=" + value->text);
  }
  return flags;
}

CommandLine text_only(std::string text) {
  CommandLine result;
  result.action = CommandLine::Action::kPrintText;
  result.text = std::move(text);
  return result;
}

// Returns `text` to print. If it is empty, returns a problem that says what `flag` wants.
CommandLine printed(const std::string& flag, const std::string& value, std::string text,
                    const char* wanted) {
  if (!text.empty()) return text_only(std::move(text));
  CommandLine result;
  result.problems.push_back(flag + value + ": must be " + wanted);
  return result;
}

// Returns the text that is asked for in place of a job; nullopt: none. --show-config isn't handled
// here, since it reads files first.
std::optional<CommandLine> asked_text(const OptionValues& typed) {
  if (const OptionValue* help = typed.find("help")) {
    return text_only(help->text == ArgumentParser::kShort ? short_help_text() : help_text());
  }
  if (typed.has("version")) return text_only(version_text());
  if (const OptionValue* shell = typed.find("print-completion")) {
    return printed("--print-completion=", shell->text, completion_script(shell->text),
                   "bash, zsh, fish or tcsh");
  }
  if (const OptionValue* page = typed.find("print-man")) {
    return printed("--print-man=", page->text, man_page(page->text), "ddprun or ddprun.toml");
  }
  return std::nullopt;
}

// Warns of flags such as --nproc_per_node=4 after PROGRAM, most often a mistake.
void warn_of_misplaced(const std::vector<std::string>& flags, LaunchConfig& config) {
  if (flags.empty()) return;
  config.notes.push_back(concat("warning: ", listed(flags), " after ", shown_word(config.program),
                                flags.size() == 1 ? " goes" : " go",
                                " to that program; ddprun's own flags come before it"));
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& args, const Environment& environment,
                               const LoadConfigFiles& load, std::optional<SchedulerStep> step) {
  CommandLine result;
  result.step = std::move(step);
  const ArgumentParser parser(args, result.problems);
  const OptionValues& typed = parser.values();
  if (result.problems.empty()) {
    if (auto asked = asked_text(typed)) return *std::move(asked);
  }
  OptionValues values;
  if (load) {
    const OptionValue* named = typed.find("config");
    try {
      result.files =
          load(named ? named->text : find_variable(environment, env::kConfig).value_or(""));
    } catch (const Error& error) {
      std::istringstream lines(error.what());
      for (std::string line; std::getline(lines, line);) result.problems.push_back(line);
    }
    values.add_files(result.files);
  }
  values.add_environment(environment);
  values.add(typed);
  // After a problem an option may be missing, so only single values are checked.
  const bool is_whole = result.problems.empty();
  const bool is_open = is_whole && !decides_nodes(values);
  if (result.step && is_open) {
    std::string problem = add_nodes_of(*result.step, values, result.config.notes);
    if (!problem.empty()) result.problems.push_back(std::move(problem));
  } else if (is_open) {
    std::string note = idle_nodes_note(environment, args);
    if (!note.empty()) result.config.notes.push_back(std::move(note));
  }
  if (typed.has("show-config")) {
    result.text = show_config(values, environment, result.files);
    result.action = CommandLine::Action::kPrintText;
  }
  LaunchConfig& config = result.config;
  config.typed = flags_of_environment(environment, typed);
  config.typed.insert(config.typed.end(), args.begin(), args.end());
  if (parser.program_at() < args.size()) {
    const auto program = args.begin() + static_cast<std::ptrdiff_t>(parser.program_at());
    config.program = *program;
    config.program_args.assign(program + 1, args.end());
    // With several hosts, the launcher has printed it once for all.
    if (!environment.contains(env::kUnderChannel)) warn_of_misplaced(parser.misplaced(), config);
  }
  values.apply(config, result.problems);
  apply_rdzv_conf(values, config, result.problems);
  if (!is_whole) return result;
  settle(values, config, result.problems);
  for (std::string& note : unknown_variables(environment)) config.notes.push_back(std::move(note));
  if (result.action == CommandLine::Action::kRun) {
    for (std::string& problem : validate(config)) result.problems.push_back(std::move(problem));
  }
  result.values = std::move(values);
  return result;
}

}  // namespace ddprun::launcher
