// SPDX-License-Identifier: Apache-2.0
// Holds all programs but `ddprun` in one, for the wheel: they share OpenSSL, SQLite, the C++
// library and most of ddprun's code. The name by which it is started selects the program.
#include <sys/prctl.h>

#include <string_view>

int ddprun_agent_main(int argc, char** argv);
int ddprunctl_main(int argc, char** argv);
int ddprund_main(int argc, char** argv);

int main(int argc, char** argv) {
  struct Program {
    const char* name;
    int (*main)(int, char**);
  };
  constexpr Program kOthers[] = {{"ddprun-agent", &ddprun_agent_main},
                                 {"ddprunctl", &ddprunctl_main}};
  const std::string_view path = argc > 0 ? argv[0] : "";
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const Program& program : kOthers) {
    if (name != program.name) continue;
    ::prctl(PR_SET_NAME, program.name);  // for ps and pgrep, because the file's name is ddprund
    return program.main(argc, argv);
  }
  return ddprund_main(argc, argv);
}
