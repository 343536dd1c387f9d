import{b as a,c as b,d as c}from"./chunk-13.js";import"./chunk-9.js";export{c as clip,a as default,b as linesOf};
