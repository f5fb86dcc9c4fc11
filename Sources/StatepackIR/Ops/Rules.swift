// Shape and scalar type rules live in this folder, one file per family.
