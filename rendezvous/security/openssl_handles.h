// SPDX-License-Identifier: Apache-2.0
// What OpenSSL gives out, freed with its owner. For the .cc files of this folder.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>

#include <memory>

namespace ddprun::security {

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* thing) const {
    kFree(thing);
  }
};

using Key = std::unique_ptr<EVP_PKEY, Freer<::EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, Freer<::BIO_free_all>>;

}  // namespace ddprun::security
