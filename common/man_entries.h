// SPDX-License-Identifier: Apache-2.0
// The options of a program that CLI11 reads, for its manual page.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddprun {

// Those that --help shows, in its order. App: CLI::App, which the program that has one includes.
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
