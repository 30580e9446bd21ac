// SPDX-License-Identifier: Apache-2.0
// A manual page, and how man(1) reads it: roff with the macros of man(7). Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddprun {

struct ManSection {
  std::string title;  // "DESCRIPTION"
  std::string text;   // paragraphs are separated by an empty line; lines that begin with a blank
                      // are shown as they are
  // "--nnodes N|MIN:MAX" and what it does.
  std::vector<std::pair<std::string, std::string>> entries = {};
};

struct ManPage {
  std::string name;      // "ddprun"
  int section = 1;       // 1: commands, 5: files, 8: daemons
  std::string summary;   // what stands behind the name, one line
  std::string synopsis;  // "ddprun [flags] PROGRAM [args...]"
  std::vector<ManSection> sections;
};

std::string to_roff(const ManPage& page);

}  // namespace ddprun
