// SPDX-License-Identifier: Apache-2.0
// ddprun-chart-png DIR: draws the pictures that it reads on standard input into DIR, with Cairo. A
// program of its own, so that ddprunctl needs and loads none of it.
#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "ctl/report/png/picture_lines.h"

#ifdef __SANITIZE_ADDRESS__
// Fontconfig frees little of its own at the end.
extern "C" const char* __lsan_default_suppressions() { return "leak:libfontconfig"; }
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }
#endif

int main(int argc, char** argv) {
  using namespace ddprun;
  std::signal(SIGPIPE, SIG_IGN);
  if (argc != 2) {
    std::fprintf(stderr, "usage: ddprun-chart-png DIR, pictures on standard input\n");
    return static_cast<int>(ExitCode::kUsage);
  }
  try {
    report::PictureLines pictures(argv[1]);
    std::ios::sync_with_stdio(false);
    for (std::string line; std::getline(std::cin, line);) pictures.line(line);
    pictures.end();
    return static_cast<int>(ExitCode::kOk);
  } catch (const Error& error) {
    std::fprintf(stderr, "ddprun-chart-png: %s\n", one_line(error.what()).c_str());
    return static_cast<int>(error.code() == ErrorCode::kSystem ? ExitCode::kOutputLost
                                                               : exit_code_for(error.code()));
  }
}
