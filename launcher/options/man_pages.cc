// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/man_pages.h"

#include "launcher/options/help_text.h"
#include "launcher/options/option_table.h"

namespace ddprun::launcher {
namespace {

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

std::string with_default(const Option& option) {
  return option.help + (option.fallback.empty() ? "" : " (default " + option.fallback + ")");
}

std::string as_flag(const Option& option) {
  const std::string letter = option.letter == 0 ? "" : std::string("-") + option.letter + ", ";
  return letter + "--" + option.name + (option.is_switch() ? "" : " " + option.value);
}

std::string as_key(const Option& option) {
  return underscored(option.name) + " = " +
         (option.is_switch() ? "true|false" : "\"" + option.value + "\"");
}

}  // namespace

ManPage ddprun_man_page() {
  ManPage page{.name = "ddprun",
               .section = 1,
               .summary = "start, connect and watch the workers of a distributed training job",
               .synopsis = "ddprun [flags] PROGRAM [args...]",
               .sections = {{"Description", kDescription}, {"Examples", help_examples()}}};
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

}  // namespace ddprun::launcher
