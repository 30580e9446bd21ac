// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/printed_texts.h"

#include <algorithm>
#include <utility>

#include "common/completion.h"
#include "common/env_names.h"
#include "common/man_page.h"
#include "common/text.h"
#include "launcher/options/option_table.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kHelpColumn = 36;
constexpr std::size_t kWidth = 100;

constexpr char kTitle[] =
    "ddprun: starts, connects and watches the workers of a distributed training job\n";

constexpr char kExamples[] =
    R"(  ddprun --standalone --nproc_per_node=2 train          two workers on this machine
  ddprun --nproc_per_node=gpu train.py --lr 0.1         one worker per GPU; flags after train.py are its own
  ddprun --nnodes=2 --rdzv-endpoint=node0:29400 --nproc_per_node=4 train
                                                        on each of two machines; node0 is one of them
  ddprun --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --master-port=29500 train
                                                        the same with fixed ranks
  srun -N2 --ntasks-per-node=1 ddprun --nnodes=2 train  under Slurm: finds its endpoint by itself
)";

constexpr char kUsage[] =
    R"(Usage: ddprun [flags] PROGRAM [args…]

PROGRAM is an executable, a Python script, or with -m a Python module.
Each flag can be spelled with - or _ between its words; one that isn't given is taken from
DDPRUN_<FLAG>, PET_<FLAG> or a configuration file (--show-config says which).
)";

constexpr char kFooter[] =
    R"(
Exit status: 0; 2 usage; 69 rendezvous unreachable; 75 worth retrying; otherwise the first
failing worker's own, or 128 + signal (docs/exit-codes.md).
)";

constexpr char kShortUsage[] =
    R"(
Usage: ddprun [flags] PROGRAM [args…]

  ddprun --standalone --nproc_per_node=gpu train.py
      on this machine, a worker for each GPU
  ddprun --nnodes=2 --nproc_per_node=8 --rdzv-endpoint=node0:29400 train.py
      the same line on both nodes

)";

// The most used flags in few words, since -h fits on one screen of 80 columns.
constexpr std::pair<const char*, const char*> kShortOptions[] = {
    {"nproc-per-node", "workers on each node (1)"},
    {"standalone", "one node, any free port"},
    {"nnodes", "number of nodes (1)"},
    {"rdzv-endpoint", "where the nodes meet"},
    {"hosts", "start the nodes from here, over ssh"},
    {"max-restarts", "restarts after a worker failed (0)"},
    {"module", "PROGRAM is a Python module"},
    {"log-dir", "where log files go"},
    {"tee", "what goes there and to the console: 3"},
    {"dry-run", "what would run, and no job"},
    {"show-config", "each option's value, and who gave it"},
};

std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

// Wraps `text` from column kHelpColumn on, in lines of at most kWidth columns.
std::string wrapped(std::string_view text) {
  std::string lines;
  std::size_t column = kHelpColumn;
  while (!text.empty()) {
    const std::string_view word = take_until(text, " ");
    if (column > kHelpColumn && column + 1 + columns(word) > kWidth) {
      lines += "\n" + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (column > kHelpColumn) {
      lines += " ";
      ++column;
    }
    lines += word;
    column += columns(word);
  }
  return lines;
}

std::string with_default(const Option& option) {
  return option.help + (option.fallback.empty() ? "" : " (default " + option.fallback + ")");
}

std::string entry(const Option& option) {
  std::string line = "  ";
  if (option.letter != 0) line += std::string("-") + option.letter + ", ";
  line += "--" + option.name;
  if (!option.is_switch()) line += " " + option.value;
  const std::size_t width = columns(line);
  line += width + 1 < kHelpColumn ? std::string(kHelpColumn - width, ' ')
                                  : "\n" + std::string(kHelpColumn, ' ');
  return line + wrapped(with_default(option)) + "\n";
}

constexpr char kDescription[] =
    R"(Starts, connects and watches the workers of a distributed training job: run once on each node, it finds the place where the nodes meet, starts one worker (--nproc-per-node: more, or one per GPU), restarts all of them when one fails, and ends with a report that names the first failure.

PROGRAM is an executable, a Python script, or with -m a Python module; what follows it is its own. Command lines of torchrun work unchanged.)";

constexpr char kExitStatus[] = R"( 0        every worker of every node exited with 0
 2        a bad flag, configuration or program
 69       the rendezvous is unreachable
 70       a fault of ddprun's own
 74       what was asked for in place of a job (--help, --show-config) can't be written to stdout
 75       preempted, or a node was lost or never came: worth retrying
 76       restarts brought no progress: don't requeue
 124      a worker hung, or the time limit was reached
 126, 127 the program could not be executed, or was not found
 other    the code of the first worker that failed, 128 + n where signal n ended it)";

constexpr char kFiles[] =
    R"( $XDG_CONFIG_HOME/ddprun/ddprun.toml (~/.config/ddprun/ddprun.toml)
 /etc/ddprun/ddprun.toml)";

constexpr char kEnvironment[] =
    R"(Every option but those that meet or print can be given as DDPRUN_<OPTION> or, as with torchrun, PET_<OPTION>, in upper case and with "_" for "-": DDPRUN_MAX_RESTARTS=3. The command line comes before DDPRUN_*, that before PET_*, that before the files. ddprun --show-config prints each option's value and where it comes from.)";

std::string as_flag(const Option& option) {
  const std::string letter = option.letter == 0 ? "" : std::string("-") + option.letter + ", ";
  return letter + "--" + option.name + (option.is_switch() ? "" : " " + option.value);
}

std::string as_key(const Option& option) {
  return underscored(option.name) + " = " +
         (option.is_switch() ? "true|false" : "\"" + option.value + "\"");
}

ManPage ddprun_man_page() {
  ManPage page{.name = "ddprun",
               .section = 1,
               .summary = "start, connect and watch the workers of a distributed training job",
               .synopsis = "ddprun [flags] PROGRAM [args...]",
               .sections = {{"Description", kDescription}, {"Examples", kExamples}}};
  for (const Option& option : option_table()) {
    if (page.sections.back().title != option.group) page.sections.push_back({option.group, ""});
    page.sections.back().entries.emplace_back(as_flag(option), with_default(option));
  }
  page.sections.push_back({"Exit status", kExitStatus});
  page.sections.push_back({"Environment", kEnvironment});
  page.sections.push_back({"Files", kFiles});
  page.sections.push_back({"See also", "ddprun.toml(5), ddprund(8), ddprunctl(1)"});
  return page;
}

ManPage config_file_man_page() {
  ManPage page{
      .name = "ddprun.toml",
      .section = 5,
      .summary = "what a cluster or a user sets once for ddprun",
      .synopsis = {},
      .sections = {
          {"Description",
           std::string("A file in TOML. The first of these that gives an option its value counts; "
                       "the command line and the environment come before all:\n\n"
                       " the file that --config or DDPRUN_CONFIG names\n") +
               kFiles +
               "\n\nAn unknown key or a value of the wrong type is an error that names "
               "the file and the line. ddprun --show-config prints what counts."},
          {"Where jobs meet",
           "",
           {{"rdzv_endpoint = \"HOST:PORT,...\"",
             "the cluster's rendezvous, a ddprund(8) (default port 29400), or several of them of "
             "which one leads"},
            {"hosts = [\"HOST\", ...]",
             "without one: the machines that jobs run on; the first one serves"}}}}};
  page.sections.push_back({"Options", "As the flags of ddprun(1)."});
  for (const Option& option : option_table()) {
    if (option.only_typed) continue;
    page.sections.back().entries.emplace_back(as_key(option), with_default(option));
  }
  page.sections.push_back({"See also", "ddprun(1), ddprund(8)"});
  return page;
}

std::string toml_string(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    result += letter;
  }
  return result + '"';
}

std::string toml_value(const Option& option, const std::string& text) {
  if (option.is_switch()) return parse_switch(text).value_or(false) ? "true" : "false";
  const bool is_number =
      !text.empty() &&
      std::all_of(text.begin(), text.end(),
                  [](unsigned char letter) { return letter >= '0' && letter <= '9'; }) &&
      (text.size() == 1 || text[0] != '0');
  return is_number ? text : toml_string(one_line(text));
}

// Returns the option's line if a source beyond the usual ones gives a value (endpoint_discovery.h);
// empty: none does.
std::string other_sources(const Option& option, const Environment& environment,
                          const std::vector<ConfigFile>& files) {
  std::string lines;
  const auto add = [&](const std::string& value, const std::string& origin) {
    lines +=
        underscored(option.name) + " = " + toml_string(one_line(value)) + "  # " + origin + "\n";
  };
  const auto variable = [&](const char* name) {
    if (const auto value = find_variable(environment, name)) add(*value, name);
  };
  if (option.name == "rdzv-endpoint") {
    variable(env::kRdzvEndpoint);
    variable(env::kPetRdzvEndpoint);
    for (const ConfigFile& file : files) {
      if (!file.rdzv_endpoint.empty()) add(file.rdzv_endpoint, file.path);
    }
  } else if (option.name == "rdzv-id") {
    variable(env::kRdzvId);
    variable(env::kPetRdzvId);
  } else if (option.name == "master-addr") {
    variable(env::kPetMasterAddr);
  } else if (option.name == "master-port") {
    variable(env::kPetMasterPort);
  }
  // The first source wins.
  return lines.substr(0, lines.find('\n') + 1);
}

}  // namespace

std::string help_text() {
  std::string text = std::string(kTitle) + "\nExamples:\n" + kExamples + "\n" + kUsage;
  std::string group;
  for (const Option& option : option_table()) {
    if (option.group != group) text += "\n" + option.group + ":\n";
    group = option.group;
    text += entry(option);
  }
  return text + kFooter + kDocsPlace + "\n";
}

std::string short_help_text() {
  std::string text = std::string(kTitle) + kShortUsage;
  for (const auto& [name, help] : kShortOptions) {
    const std::string flag = "  " + as_flag(*find_option(name));
    text += flag + std::string(kHelpColumn - columns(flag), ' ') + help + "\n";
  }
  return text + "\nddprun --help has all flags; man ddprun, too.\n";
}

std::string version_text() {
  return "ddprun " DDPRUN_VERSION "\nbuilt with " DDPRUN_BUILT_WITH "\n";
}
std::string man_page(std::string_view name) {
  if (name == "ddprun") return to_roff(ddprun_man_page());
  return name == "ddprun.toml" ? to_roff(config_file_man_page()) : "";
}

std::string completion_script(std::string_view shell) {
  CompletedProgram program{.name = "ddprun", .flags = {}, .starts_another = true};
  for (const Option& option : option_table()) {
    program.flags.push_back({option.name, option.letter, option.value, option.help});
  }
  return ddprun::completion_script(program, shell);
}

std::string show_config(const OptionValues& values, const Environment& environment,
                        const std::vector<ConfigFile>& files) {
  std::string text = "# Files: ";
  for (const ConfigFile& file : files) text += file.path + " ";
  text += files.empty() ? "none\n" : "\n";
  std::string group;
  for (const Option& option : option_table()) {
    if (option.group == kOtherGroup) continue;
    if (option.group != group) text += "\n# " + option.group + "\n";
    group = option.group;
    const std::string key = underscored(option.name);
    if (const OptionValue* value = values.find(option.name)) {
      text += key + " = " + toml_value(option, value->text) + "  # " + value->origin + "\n";
    } else if (const std::string other = other_sources(option, environment, files);
               !other.empty()) {
      text += other;
    } else if (option.only_typed && option.name != "rdzv-endpoint") {  // files have that one, too
      text += "#--" + option.name + "  # not from a file: " + option.help + "\n";
    } else {
      const std::string fallback =
          option.is_switch() ? "false"
                             : (option.fallback.empty() ? "" : toml_value(option, option.fallback));
      text += "#" + key + " = " + fallback + "  # " + option.help + "\n";
    }
  }
  return text;
}

}  // namespace ddprun::launcher
