// SPDX-License-Identifier: Apache-2.0
// Whom an agent obeys: the term that it follows (docs/rendezvous.md, "Terms"). In memory, for the
// life of its session. Pure.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

class TermRegister {
 public:
  // Empty: none yet, or the rendezvous has no terms.
  const std::string& follows() const { return follows_; }

  // Whether a Welcome of that term may be taken.
  bool allows(const std::string& term) const { return follows_.empty() || follows_ == term; }

  // Whether a Refused of that term, by a rendezvous that goes on from `line`, is meant: it knows of
  // all that this agent's own rendezvous knew.
  bool heeds(const std::string& term, const std::vector<std::string>& line) const;

  // A Welcome that is allowed was taken.
  void welcomed(const std::string& term);

  // Compare and swap: true, and the claim's term is followed, where the claim's basis is, none is,
  // or the claim's term is already. Else nothing changes.
  bool claim(const Claim& claim);

 private:
  std::string follows_;
};

// For people: "term 3f2a91c0", "no term".
std::string shown_term(const std::string& term);

}  // namespace ddprun::membership
