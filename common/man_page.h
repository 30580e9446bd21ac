// SPDX-License-Identifier: Apache-2.0
// A manual page, and its form for man(1): roff with the macros of man(7). Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddprun {

struct ManSection {
  std::string title;  // "DESCRIPTION"
  std::string text;   // paragraphs are separated by an empty line; lines that begin with a blank
                      // are shown as they are
  // Each is "--nnodes N|MIN:MAX" and what it does.
  std::vector<std::pair<std::string, std::string>> entries = {};
};

struct ManPage {
  std::string name;      // "ddprun"
  int section = 1;       // 1: commands, 5: files, 8: daemons
  std::string summary;   // the text behind the name, one line
  std::string synopsis;  // "ddprun [flags] PROGRAM [args...]"
  std::vector<ManSection> sections;
};

// The last text of each manual page and help text: they name pages as docs/NAME.md.
inline constexpr char kDocsPlace[] =
    "The pages docs/NAME.md are in share/doc/ddprun below the directory that ddprun is installed "
    "in (/usr of a package, /usr/local of cmake --install).";

std::string to_roff(const ManPage& page);

// Returns the options of a program that CLI11 reads: those that --help shows, in its order. App is
// CLI::App; the caller includes CLI11.
template <typename App>
std::vector<std::pair<std::string, std::string>> man_entries(const App& app) {
  std::vector<std::pair<std::string, std::string>> entries;
  for (const auto* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    std::string head = option->get_name(false, true);
    for (std::size_t at = 0; (at = head.find(',', at)) != std::string::npos; at += 2) {
      head.replace(at, 1, ", ");
    }
    if (option->get_items_expected_max() > 0) head += " " + option->get_type_name();
    const std::string fallback = option->get_default_str();
    entries.emplace_back(
        head, option->get_description() + (fallback.empty() ? "" : " (default " + fallback + ")"));
  }
  return entries;
}

}  // namespace ddprun
