// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/hmac.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <string>

#include "common/check.h"

namespace ddprun::security {

namespace {
constexpr std::size_t kMaxShownBytes = 200;
}  // namespace

Mac hmac_sha256(std::span<const std::uint8_t> key, std::string_view text) {
  Mac mac;
  unsigned int size = 0;
  const auto* made =
      ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &size);
  DDPRUN_CHECK(made != nullptr && size == mac.size());
  return mac;
}

std::string shown(std::string_view text) {
  std::string clean(text.substr(0, kMaxShownBytes));
  for (char& c : clean) {
    if (c < ' ' || c > '~') c = '?';
  }
  return clean;
}

}  // namespace ddprun::security
