// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/own_lines.h"

#include <array>
#include <utility>

namespace ddprun::launcher {
namespace {

// Beginnings of lines by terminal_text.h and main().
constexpr std::array<std::string_view, 2> kBegins = {"[ddprun] ", "ddprun: "};

// Returns the beginning that `part` of a line has, or may still get; empty: none.
std::string_view own_begin(std::string_view part) {
  for (const std::string_view begin : kBegins) {
    if (begin.substr(0, part.size()) == part.substr(0, begin.size())) return begin;
  }
  return {};
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
    const bool ends = newline != std::string_view::npos;
    const std::string_view piece = bytes.substr(0, ends ? newline + 1 : newline);
    bytes.remove_prefix(piece.size());
    node.held += piece;
    const bool is_own = !node.in_line && !own_begin(node.held).empty();
    if (is_own && !ends && node.held.size() <= kMostHeldBytes) continue;
    const std::string line = std::exchange(node.held, {});
    out += is_own && ends ? shown(index, line) : line;
    node.in_line = !ends;
  }
  return out;
}

std::string OwnLines::end(int index) {
  Node& node = nodes_[index];
  node.in_line = false;
  return std::exchange(node.held, {});
}

std::string OwnLines::shown(int index, std::string_view line) {
  auto found = said_.find(line);
  if (found == said_.end()) {
    if (order_.size() == kMostRemembered) {
      said_.erase(order_.front());
      order_.pop_front();
    }
    order_.emplace_back(line);
    found = said_.try_emplace(order_.back()).first;
    found->second.times.resize(nodes_.size());
  }
  Said& said = found->second;
  if (++said.times[index] <= said.num_shown) return {};
  ++said.num_shown;
  const std::string_view begin = own_begin(line);
  return std::string(begin) + nodes_[index].name + ": " + std::string(line.substr(begin.size()));
}

}  // namespace ddprun::launcher
