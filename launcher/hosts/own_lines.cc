// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/own_lines.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ddprun::launcher {
namespace {

// As terminal_text.h and main() begin their lines.
constexpr std::array<std::string_view, 2> kBegins = {"[ddprun] ", "ddprun: "};

// The begin that `line` has; empty: none.
std::string_view own_begin(std::string_view line) {
  for (const std::string_view begin : kBegins) {
    if (line.starts_with(begin)) return begin;
  }
  return {};
}

bool may_become_own(std::string_view part) {
  return std::any_of(kBegins.begin(), kBegins.end(), [&](std::string_view begin) {
    return begin.substr(0, part.size()) == part.substr(0, begin.size());
  });
}

}  // namespace

OwnLines::OwnLines(std::vector<std::string> names) {
  for (std::string& name : names) nodes_.push_back({.name = std::move(name), .held = {}});
}

std::string OwnLines::pass(int index, std::string_view bytes) {
  Node& node = nodes_[index];
  std::string out;
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::string_view piece =
        bytes.substr(0, newline == std::string_view::npos ? newline : newline + 1);
    bytes.remove_prefix(piece.size());
    const bool ends = newline != std::string_view::npos;
    if (node.in_line) {
      out += piece;
      node.in_line = !ends;
      continue;
    }
    node.held += piece;
    if (ends) {
      out += shown(node, index, std::exchange(node.held, {}));
    } else if (!may_become_own(node.held) || node.held.size() > kMostHeldBytes) {
      out += std::exchange(node.held, {});
      node.in_line = true;
    }
  }
  return out;
}

std::string OwnLines::end(int index) {
  Node& node = nodes_[index];
  node.in_line = false;
  return std::exchange(node.held, {});
}

std::string OwnLines::shown(Node& node, int index, std::string_view line) {
  const std::string_view begin = own_begin(line);
  if (begin.empty()) return std::string(line);
  auto found = said_.find(line);
  if (found == said_.end()) {
    if (order_.size() == kMostRemembered) {
      said_.erase(order_.front());
      order_.erase(order_.begin());
    }
    order_.emplace_back(line);
    found = said_.try_emplace(order_.back()).first;
    found->second.times.resize(nodes_.size());
  }
  Said& said = found->second;
  if (++said.times[index] <= said.num_shown) return {};
  ++said.num_shown;
  return std::string(begin) + node.name + ": " + std::string(line.substr(begin.size()));
}

}  // namespace ddprun::launcher
