// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <sstream>

#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "common/suggest.h"
#include "launcher/options/option_table.h"
#include "launcher/options/printed_texts.h"

namespace ddprun::launcher {
namespace {

// What argv says: values of options, PROGRAM and its arguments.
class ArgumentParser {
 public:
  explicit ArgumentParser(std::vector<std::string> args) : args_(std::move(args)) {
    app_.set_help_flag();
    for (const Option& option : option_table()) add(option);
  }

  // Adds to `problems`.
  OptionValues parse(std::vector<std::string>& problems) {
    OptionValues values;
    program_at_ = find_program(problems);
    if (!problems.empty()) return values;
    std::vector<std::string> flags;
    for (std::size_t i = 0; i < program_at_; ++i) {
      const std::string& arg = args_[i];
      if (arg == "--") continue;
      const bool is_empty = arg.starts_with("--") && arg.find('=') + 1 == arg.size();
      flags.push_back(is_empty ? arg.substr(0, arg.size() - 1) : arg);
      if (is_empty) flags.emplace_back();
    }
    std::reverse(flags.begin(), flags.end());  // CLI11 reads from the back
    try {
      app_.parse(std::move(flags));
    } catch (const CLI::ConversionError& error) {  // the switches' only one
      problems.push_back(std::string(error.what()) + ": this flag takes no value");
    } catch (const CLI::ParseError& error) {
      problems.emplace_back(error.what());
    }
    for (const auto& [name, option] : options_) {
      if (option->count() == 0) continue;
      std::string text = option->results().back();
      const Option& known = *find_option(name);
      if (known.repeats) text = joined(option->results(), known.separator);
      values.set(name, {std::move(text), OptionValues::kCommandLine});
    }
    return values;
  }

  // Index of PROGRAM, or the number of arguments. Known after parse().
  std::size_t program_at() const { return program_at_; }

 private:
  static std::string joined(const std::vector<std::string>& values, char separator) {
    std::string text = values.front();
    for (std::size_t i = 1; i < values.size(); ++i) text += separator + values[i];
    return text;
  }

  void add(const Option& option) {
    std::string names = "--" + option.name;
    if (underscored(option.name) != option.name) names += ",--" + underscored(option.name);
    if (option.letter != 0) names += std::string(",-") + option.letter;
    CLI::Option* added = option.is_switch() ? app_.add_flag(names, switches_[option.name])
                                            : app_.add_option(names, texts_[option.name]);
    added->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    options_[option.name] = added;
  }

  // An unknown flag before PROGRAM is a problem, an abbreviated one is written out.
  std::size_t find_program(std::vector<std::string>& problems) {
    for (std::size_t i = 0; i < args_.size(); ++i) {
      std::string& arg = args_[i];
      if (arg == "--") return i + 1;
      if (arg.size() < 2 || arg[0] != '-') return i;
      if (arg[1] != '-') arg = without_letter(arg);
      const std::size_t equals = arg.find('=');
      std::string name = arg.substr(0, equals);
      const CLI::Option* option = app_.get_option_no_throw(name);
      if (!option) {
        const std::string whole = written_out(name);
        option = app_.get_option_no_throw(whole);
        if (option) arg.replace(0, name.size(), whole);
      }
      if (!option) {
        problems.push_back("unknown flag " + name + did_you_mean(name, flag_names()) +
                           "; flags of the program come after its name");
        return i;
      }
      if (equals != std::string::npos || option->get_items_expected_max() == 0) continue;
      if (++i == args_.size()) {  // its value
        problems.push_back(name + ": wants a value, " + find_option(name.substr(2))->value);
      }
    }
    return args_.size();
  }

  // "-r" → "--redirects", "-r3" and "-r=3" → "--redirects=3"; what is none of ours as it is.
  static std::string without_letter(const std::string& arg) {
    const bool has_value = arg.size() > 2;
    for (const Option& option : option_table()) {
      if (option.letter != arg[1] || (has_value && option.is_switch())) continue;
      if (!has_value) return "--" + option.name;
      return "--" + option.name + "=" + arg.substr(arg[2] == '=' ? 3 : 2);
    }
    return arg;
  }

  // "--nproc" → "--nproc-per-node": the only flag of torchrun's that begins so, which has
  // abbreviations, too; else the only one of ours; else "".
  static std::string written_out(const std::string& name) {
    if (!name.starts_with("--") || name.size() == 2) return {};
    for (const bool torchruns_only : {true, false}) {
      std::vector<std::string> found;
      for (const Option& option : option_table()) {
        if (torchruns_only && !is_torchruns(option)) continue;
        if (underscored(option.name).starts_with(underscored(name.substr(2)))) {
          found.push_back("--" + option.name);
        }
      }
      if (found.size() == 1) return found.front();
    }
    return {};
  }

  static std::vector<std::string> flag_names() {
    std::vector<std::string> names;
    for (const Option& option : option_table()) names.push_back("--" + option.name);
    return names;
  }

  std::vector<std::string> args_;
  CLI::App app_;
  std::map<std::string, CLI::Option*> options_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, bool> switches_;
  std::size_t program_at_ = 0;
};

// What options mean together.
void settle(const OptionValues& given, LaunchConfig& config, std::vector<std::string>& problems) {
  std::string problem =
      settle_signals(given.has("signals-to-handle"), given.has("preemption-signals"),
                     config.signals_to_handle, config.preemption);
  if (!problem.empty()) problems.push_back(std::move(problem));
  if (config.max_nodes == 1 && config.node_rank.value_or(0) > 0) {  // schedulers export it
    config.notes.push_back("--node-rank=" + std::to_string(*config.node_rank) +
                           " means nothing with one node (--nnodes=1)");
    config.node_rank.reset();
  }
}

// --nnodes where nobody gave it: all that the scheduler gave, less those that wait as spares.
// Returns the problem, empty: none.
std::string add_nodes_of(const SchedulerStep& step, OptionValues& values,
                         std::vector<std::string>& notes) {
  for (const char* decides : {"nnodes", "standalone", "hosts", "hostfile"}) {
    if (values.has(decides)) return {};
  }
  // Each node by itself would run the whole job.
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

// What variables of this node's environment give, as the other nodes' command lines would have it.
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

// `text`, or where it is empty what `flag` wants.
CommandLine printed(const std::string& flag, const std::string& value, std::string text,
                    const char* wanted) {
  if (!text.empty()) return text_only(std::move(text));
  CommandLine result;
  result.problems.push_back(flag + value + ": must be " + wanted);
  return result;
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& args, const Environment& environment,
                               const LoadConfigFiles& load, std::optional<SchedulerStep> step) {
  CommandLine result;
  result.step = std::move(step);
  ArgumentParser parser(args);
  const OptionValues typed = parser.parse(result.problems);
  if (!result.problems.empty()) return result;
  if (typed.has("help")) return text_only(help_text());
  if (typed.has("version")) return text_only(version_text());
  if (const OptionValue* shell = typed.find("print-completion")) {
    return printed("--print-completion=", shell->text, completion_script(shell->text),
                   "bash, zsh, fish or tcsh");
  }
  if (const OptionValue* page = typed.find("print-man")) {
    return printed("--print-man=", page->text, man_page(page->text), "ddprun or ddprun.toml");
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
      return result;
    }
    values.add_files(result.files);
  }
  values.add_environment(environment);
  values.add(typed);
  if (result.step) {
    std::string problem = add_nodes_of(*result.step, values, result.config.notes);
    if (!problem.empty()) result.problems.push_back(std::move(problem));
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
  }
  values.apply(config, result.problems);
  apply_rdzv_conf(values, config, result.problems);
  settle(values, config, result.problems);
  for (std::string& note : unknown_variables(environment)) config.notes.push_back(std::move(note));
  if (result.action == CommandLine::Action::kRun) {
    for (std::string& problem : validate(config)) result.problems.push_back(std::move(problem));
  }
  result.values = std::move(values);
  return result;
}

}  // namespace ddprun::launcher
