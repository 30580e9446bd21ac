// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/term_register.h"

#include <algorithm>

#include "common/check.h"

namespace ddprun::membership {

bool TermRegister::heeds(const std::string& term, const std::vector<std::string>& line) const {
  return allows(term) || std::ranges::count(line, follows_) > 0;
}

void TermRegister::welcomed(const std::string& term) {
  DDPRUN_CHECK(allows(term));
  follows_ = term;
}

bool TermRegister::claim(const Claim& claim) {
  const bool granted = follows_.empty() || follows_ == claim.basis || follows_ == claim.term;
  if (granted) follows_ = claim.term;
  return granted;
}

std::string shown_term(const std::string& term) {
  constexpr std::size_t kShown = 8;
  return term.empty() ? "no term" : "term " + term.substr(0, kShown);
}

}  // namespace ddprun::membership
