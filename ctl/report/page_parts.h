// SPDX-License-Identifier: Apache-2.0
// Pieces of HTML. Whatever text they get becomes text, never markup. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ctl/report/chart.h"

namespace ddprun::report {

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string element(const std::string& tag, const std::string& text);
// <p class=…>; nothing where there is no text.
std::string paragraph(const std::string& style, const std::string& text);
std::string list_of(const std::string& style, const std::vector<std::string>& texts);
std::string pairs_of(const std::string& style, const Pairs& pairs);  // <dl>
std::string table_of(const Table& table, const std::string& caption);
std::string figure_of(const Chart& chart);

}  // namespace ddprun::report
